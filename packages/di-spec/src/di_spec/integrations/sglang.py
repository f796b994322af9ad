"""The n-gram drafter inside SGLang, as a registered speculative algorithm.

    import di_spec.integrations.sglang
    di_spec.integrations.sglang.register()      # before the server parses its arguments
    # --speculative-algorithm DI_NGRAM --speculative-num-draft-tokens 6

The worker is SGLang's own n-gram worker with another corpus: drafts are one chain per request, from
the request's whole text, instead of a tree from a trie that requests share. SGLang verifies them.

Its dependencies exist for CUDA only. The corpus and the signatures it meets are tested on the CPU
(`check_contract` reads them from SGLang's files); the worker itself was not run.
"""

import importlib
from pathlib import Path
from typing import Any

from di_spec.errors import UnsupportedEngineError
from di_spec.integrations._contract import check_contract
from di_spec.integrations._corpus import RequestCorpus
from di_spec.integrations._versions import require_engine

__all__ = ["ALGORITHM", "SUPPORTED_VERSIONS", "check_contract", "register"]

ALGORITHM = "DI_NGRAM"
SUPPORTED_VERSIONS = ("0.5",)
"""0.5.23 was read; `check_contract` compares what is installed."""

require_engine(("sglang",), SUPPORTED_VERSIONS)


def register() -> None:
    """Registers `DI_NGRAM` with SGLang.

    Raises:
        UnsupportedEngineError: If SGLang's plug-in points differ from those known here.
    """
    spec = importlib.import_module("sglang.srt.speculative.spec_info")
    problems = check_contract(Path(spec.__file__ or "").parent)
    if problems:
        raise UnsupportedEngineError("SGLang has changed: " + "; ".join(problems))
    registry = importlib.import_module("sglang.srt.speculative.spec_registry")
    algorithm = _ngram_like(registry.CustomSpecAlgo)
    decorate = spec.SpeculativeAlgorithm.register(
        ALGORITHM, supports_overlap=True, spec_class=algorithm
    )
    decorate(lambda server_args: _worker_class())


def _ngram_like(base: Any) -> Any:
    """SGLang's plug-in algorithm that answers as its n-gram algorithm does."""

    class DiNgramAlgorithm(base):  # type: ignore[misc]  # the base is SGLang's, known at run time
        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            hook = importlib.import_module("sglang.srt.arg_groups.speculative_hook")
            hook._handle_ngram(server_args)

    return DiNgramAlgorithm


def _worker_class() -> Any:
    """SGLang's n-gram worker with `RequestCorpus`."""
    module = importlib.import_module("sglang.srt.speculative.ngram_worker")

    class DiNgramWorker(module.NGRAMWorker):  # type: ignore[misc, name-defined]  # as above
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.ngram_corpus = RequestCorpus(self.draft_token_num)

        def _prepare_draft_tokens(self, batch: Any) -> Any:
            for req in batch.reqs:
                text = [*req.origin_input_ids_unpadded, *req.output_ids]
                self.ngram_corpus.begin(req.rid, text)
            return super()._prepare_draft_tokens(batch)

    return DiNgramWorker
