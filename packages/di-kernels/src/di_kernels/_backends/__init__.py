"""The backends beside the references, registered with what they serve.

Importing this package registers them and imports no compiler: a kernel is built when the first call
needs it.
"""

from di_kernels._backends import attention as attention
from di_kernels._backends import entries as entries
from di_kernels._backends import fp8_rows as fp8_rows
from di_kernels._backends import hyper_connections as hyper_connections
from di_kernels._backends import index as index
from di_kernels._backends import layer as layer
from di_kernels._backends import logits as logits
from di_kernels._backends import products as products
from di_kernels._backends import sampling as sampling
from di_kernels._backends import selection as selection
from di_kernels._backends import sm100 as sm100
