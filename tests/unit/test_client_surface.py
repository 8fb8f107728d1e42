"""What `import pecia` offers."""

import pytest

import pecia
from pecia import errors


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Klient"):
        _ = pecia.Klient  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PeciaError)
    }
    told = {word.strip(":") for word in (errors.__doc__ or "").split() if word.endswith("Error")}
    assert names == told - {"ValueError", "LookupError", "RuntimeError", "TimeoutError"}
