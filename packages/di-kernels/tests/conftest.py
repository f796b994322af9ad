from pathlib import Path

import pytest
from safetensors.torch import load_file

VECTORS = Path(__file__).parent / "vectors"


@pytest.fixture(scope="session")
def quant_cases():
    return load_file(VECTORS / "quant_cases.safetensors")


@pytest.fixture(scope="session")
def real_tables():
    return load_file(VECTORS / "real_config_tables.safetensors")
