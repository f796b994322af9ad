import subprocess
import sys
import zipfile

import numpy as np
import pytest

from di_spec import UnsupportedEngineError
from di_spec.integrations._contract import _SIGNATURES, check_contract
from di_spec.integrations._corpus import RequestCorpus


def test_trees_are_chains_from_the_last_token():
    corpus = RequestCorpus(4, min_n=1, max_n=2)
    corpus.begin("a", [1, 2, 3, 1])
    corpus.begin("a", [9])  # known already
    tokens, mask = corpus.batch_get(["a", "b"], [[3, 1, 2], [5, 6]], [5, 2])
    assert tokens.reshape(2, 4).tolist() == [[2, 3, 1, 2], [6, 6, 6, 6]]
    assert tokens.dtype == np.int64
    np.testing.assert_array_equal(mask.reshape(2, 4, 4)[1], np.tril(np.ones((4, 4), bool)))


def test_requests_are_followed_and_forgotten():
    corpus = RequestCorpus(3, min_n=1, max_n=2)
    corpus.begin("a", [1, 2, 1])
    corpus.batch_get(["a"], [[2, 1]], [3])  # nothing new
    tokens, _ = corpus.batch_get(["a"], [[1, 2, 1, 2]], [4])
    assert tokens.tolist() == [2, 1, 2]
    corpus.erase_match_state(["a", "unknown"])
    tokens, _ = corpus.batch_get(["a"], [[7, 8]], [50])  # only the tail is known now
    assert tokens.tolist() == [8, 8, 8]
    corpus.synchronize()
    corpus.batch_put([[1]])
    corpus.reset()


def write_module(directory, signatures):
    for file_name, methods in signatures.items():
        path = directory / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        classes = {}
        for name, arguments in methods.items():
            owner, method = name.split(".")
            classes.setdefault(owner, []).append(f"    def {method}({', '.join(arguments)}): ...")
        path.write_text("\n".join(f"class {c}:\n" + "\n".join(m) for c, m in classes.items()))


def test_contract_finds_what_changed(tmp_path):
    write_module(tmp_path, _SIGNATURES)
    assert check_contract(tmp_path) == []
    (tmp_path / "ngram_worker.py").unlink()
    changed = {"cpp_ngram/ngram_corpus.py": {"NgramCorpus.batch_get": ["self", "tokens"]}}
    write_module(tmp_path, changed)
    problems = check_contract(tmp_path)
    assert "`ngram_worker.py` is missing" in problems
    assert any("`NgramCorpus.batch_get` takes ['self', 'tokens']" in p for p in problems)
    assert any("`NgramCorpus.reset` is not in" in p for p in problems)


def test_adapter_says_that_sglang_is_missing():
    with pytest.raises(UnsupportedEngineError, match="needs sglang"):
        __import__("di_spec.integrations.sglang")


@pytest.mark.network
@pytest.mark.slow
def test_contract_holds_for_the_released_wheel(tmp_path):
    """Downloads SGLang 0.5.23 without its dependencies and reads its files."""
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    subprocess.run([*download, "-d", str(tmp_path), "sglang==0.5.23"], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = [n for n in wheel.namelist() if n.startswith("sglang/srt/speculative/")]
        wheel.extractall(tmp_path, names)
    assert check_contract(tmp_path / "sglang/srt/speculative") == []
