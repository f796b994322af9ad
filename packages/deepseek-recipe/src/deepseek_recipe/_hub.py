"""Download of tokenizer files, apart from the rest: it needs the network and another package."""

from __future__ import annotations


def tokenizer_file(identifier: str, revision: str | None, token: str | None) -> str:
    """Download the `tokenizer.json` of a Hugging Face repository and return its path.

    Args:
        identifier: Repository name.
        revision: Branch, tag or commit; the default branch if `None`.
        token: Access token for private repositories.

    Raises:
        RuntimeError: If `huggingface_hub` is not installed.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise RuntimeError(
            "`Tokenizer.from_pretrained` needs `huggingface_hub`: install `deepseek-recipe[hub]`"
        ) from error
    return str(hf_hub_download(identifier, "tokenizer.json", revision=revision, token=token))
