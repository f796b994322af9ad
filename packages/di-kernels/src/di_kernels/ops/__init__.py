from .quantize import *
from .linear import *
from .norm import *
from .rope import *
from .records import *
from di_kernels.records import record_bytes
