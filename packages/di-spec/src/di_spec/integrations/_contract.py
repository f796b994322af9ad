"""What the SGLang adapter relies on, read from SGLang's source files without importing them."""

import ast
from pathlib import Path

__all__ = ["check_contract"]

_SIGNATURES: dict[str, dict[str, list[str]]] = {
    "spec_info.py": {
        "SpeculativeAlgorithm.register": [
            "cls",
            "name",
            "supports_overlap",
            "validate_server_args",
            "spec_class",
        ],
        "SpeculativeAlgorithm.is_ngram": ["self"],
    },
    "spec_registry.py": {
        "CustomSpecAlgo.is_ngram": ["self"],
        "CustomSpecAlgo.has_draft_kv": ["self"],
        "CustomSpecAlgo.handle_server_args": ["self", "server_args"],
        "CustomSpecAlgo.create_worker": ["self", "server_args"],
    },
    "ngram_worker.py": {
        "NGRAMWorker.__init__": ["self", "server_args", "gpu_id", "nccl_port", "target_worker"],
        "NGRAMWorker._prepare_draft_tokens": ["self", "batch"],
    },
    "cpp_ngram/ngram_corpus.py": {
        "NgramCorpus.batch_get": ["self", "req_ids", "batch_tokens", "total_lens"],
        "NgramCorpus.batch_put": ["self", "batch_tokens"],
        "NgramCorpus.synchronize": ["self"],
        "NgramCorpus.reset": ["self"],
        "NgramCorpus.erase_match_state": ["self", "req_ids"],
    },
}


def check_contract(directory: Path) -> list[str]:
    """Differences between SGLang's plug-in points and those the adapter was written for.

    Args:
        directory: The folder `sglang/srt/speculative`.

    Returns:
        One sentence for each difference; empty if there is none.
    """
    problems = []
    for file_name, expected in _SIGNATURES.items():
        path = directory / file_name
        if not path.is_file():
            problems.append(f"`{file_name}` is missing")
            continue
        found = _signatures(ast.parse(path.read_text()))
        for name, arguments in expected.items():
            if name not in found:
                problems.append(f"`{name}` is not in `{file_name}`")
            elif found[name] != arguments:
                problems.append(f"`{name}` takes {found[name]}: expected {arguments}")
    return problems


def _signatures(tree: ast.Module) -> dict[str, list[str]]:
    """Argument names of the methods of top-level classes."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    arguments = item.args
                    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                    found[f"{node.name}.{item.name}"] = [a.arg for a in names]
    return found
