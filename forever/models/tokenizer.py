"""A model's tokenizer without the model, for what only counts tokens."""

from typing import Any

from forever.errors import InputError
from forever.models.loading import explained
from forever.models.location import check, find


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model that is on this machine; see `models.backbone` for the name.

    Raises:
        InputError: it is not here, or cannot be loaded.
    """
    from transformers import AutoTokenizer  # seconds

    check(name)
    path = find(name)
    if path is None:
        raise InputError(f"model.name: {name!r} is not on this machine; a run would fetch it")
    where, options = str(path), dict[str, Any]()
    if path.suffix == ".gguf":
        where, options["gguf_file"] = str(path.parent), path.name
    with explained("model.name", name):
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
