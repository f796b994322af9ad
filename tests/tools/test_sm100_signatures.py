"""Signatures of the SM100 libraries, read out of source."""

import pytest

import read_sm100_signatures as signatures

BOUND = """
// m.def("gone", py::arg("x"));
m.def("product", &product,
      py::arg("a"), py::arg("d"),  // the result
      py::arg("c") = std::nullopt, py::arg("recipe") = std::make_tuple(1, 128, 128),
      py::arg("dims") = "nk", py::arg("is_used") = false, py::arg("epilogue") = nullptr);
m.def("alignment", [&]() { return runtime->alignment(); });
m.def("set_alignment", [&](const int& value) { runtime->set(value); });
m.def("unnamed", &unnamed);
m.def("metadata", [](const Tensor& lens) { return call(lens); }, py::arg("lens"));
m.attr("alias") = m.attr("product");
"""


def test_bound_functions_have_their_parameters_and_defaults() -> None:
    functions = dict(signatures.bound_functions(BOUND))
    assert set(functions) == {"product", "alignment", "metadata", "alias"}
    assert functions["product"] == [
        {"name": "a"},
        {"name": "d"},
        {"name": "c", "default": None},
        {"name": "recipe", "default": [1, 128, 128]},
        {"name": "dims", "default": "nk"},
        {"name": "is_used", "default": False},
        {"name": "epilogue", "default": None},
    ]
    assert functions["alignment"] == []
    assert functions["metadata"] == [{"name": "lens"}]
    assert functions["alias"] == functions["product"]


def test_defined_functions_have_theirs() -> None:
    text = "def f(q: Tensor, d_v: int = 512, *args, **kwargs): ...\nclass C: ...\n"
    assert dict(signatures.defined_functions(text)) == {
        "f": [
            {"name": "q"},
            {"name": "d_v", "default": 512},
            {"name": "*args"},
            {"name": "**kwargs"},
        ]
    }


@pytest.mark.network
def test_the_stored_signatures_are_those_of_the_published_archives() -> None:
    assert signatures.main(["--check"]) == 0
