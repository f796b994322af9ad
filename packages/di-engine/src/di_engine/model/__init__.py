"""The text model, one file per mechanism."""

from di_engine.model.backbone import Backbone
from di_engine.model.batch import RequestRows, StepBatch
from di_engine.model.numerics import Numerics
from di_engine.model.token_map import build_token_map, placeholder_token_map

__all__ = [
    "Backbone",
    "Numerics",
    "RequestRows",
    "StepBatch",
    "build_token_map",
    "placeholder_token_map",
]
