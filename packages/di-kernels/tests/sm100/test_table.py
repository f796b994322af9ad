"""The table of what is adapted and declined names things that exist."""

import re

from di_kernels import backends, op_names, sm100

ADAPTED, DECLINED = (sm100.__doc__ or "").split("Declined,")


def names(column, text):
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row[column])]


def test_adapted_ops_are_those_with_an_unverified_backend():
    unverified = {op for op in op_names() if any(not b.is_verified for b in backends(op))}
    assert set(names(1, ADAPTED)) == unverified


def test_declined_ops_exist():
    assert set(names(1, DECLINED)) <= {*op_names(), "rotation"}


def test_functions_exist_in_the_published_sources(signatures):
    known = {
        f"{module}.{name}" for module, facts in signatures.items() for name in facts["functions"]
    }
    # A module of flash_mla, and a library whose signatures were not stored.
    others = {"flash_mla.fused_norm_rope_attn_rope_cast", "deep_select.topk"}
    assert set(names(2, ADAPTED + DECLINED)) <= known | others
