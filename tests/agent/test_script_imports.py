"""The modules that a script imports, found without running it."""

import ast

import pytest

from strata.agent.script_imports import Import, changes_imports, imports_of


@pytest.fixture
def modules(tmp_path):
    """Write a script and files beside it; returns the modules that the script imports."""

    def write(script, others=None):
        for name, text in (others or {}).items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        file = tmp_path / "train.py"
        file.write_text(script, "utf-8")
        return [each.module for each in imports_of(file).imports]

    return write


def test_imports_are_in_order_with_names(tmp_path):
    file = tmp_path / "train.py"
    file.write_text('"""Trains."""\nimport torch, numpy as np\nfrom torch import nn, optim\n')
    assert imports_of(file).imports == [
        Import("torch"),
        Import("numpy"),
        Import("torch", ("nn", "optim")),
    ]


def test_imports_in_functions_and_conditions_are_left_out_except_strata(modules):
    script = "import a\nif a.x:\n    import b\ndef main():\n    import c\n    import strata.torch\n"
    assert modules(script) == ["a", "strata.torch"]


def test_imports_in_try_and_in_the_main_block_are_found(modules):
    script = "try:\n    import a\nexcept ImportError:\n    a = None\n"
    script += "if __name__ == '__main__':\n    import b\n"
    assert modules(script) == ["a", "b"]


def test_local_module_is_read_instead_of_imported(modules):
    found = modules(
        "import model\nfrom package import part\nimport d",
        {
            "model.py": "import a",
            "package/__init__.py": "import b",
            "package/part.py": "from . import other\nfrom .other import x",
            "package/other.py": "import c",
        },
    )
    assert found == ["a", "b", "c", "d"]


def test_file_that_changes_the_environment_ends_the_search(modules):
    script = "import a\nimport os\nos.environ['HF_HOME'] = '/x'\nimport b\n"
    assert modules(script) == ["a", "os"]
    setup = "import a\nimport sys\nsys.path.append('x')"
    assert modules("import setup\nimport c", {"setup.py": setup}) == ["a", "sys"]


@pytest.mark.parametrize(
    "code",
    [
        "os.environ['A'] = '1'",
        "del os.environ['A']",
        "os.environ.setdefault('A', '1')",
        "os.environ.update(A='1')",
        "os.environ |= {'A': '1'}",
        "env = os.environ",
        "environ['A'] = '1'",
        "os.putenv('A', '1')",
        "dotenv.load_dotenv()",
        "sys.path.insert(0, 'x')",
        "def f():\n    os.environ['A'] = '1'",
    ],
)
def test_code_that_may_change_imports_is_recognised(code):
    assert changes_imports(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    ["os.environ['A']", "os.environ.get('A')", "'A' in os.environ", "os.path.join('a', 'b')"],
)
def test_code_that_reads_the_environment_is_harmless(code):
    assert not changes_imports(ast.parse(code))
