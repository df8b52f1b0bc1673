"""The kernels are compiled once for one cache and one state of their sources, not once per process."""

from pathlib import Path

import pytest

from nyala.testing import warm


@pytest.fixture
def compilations(monkeypatch, tmp_path):
    ran: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda words, check: ran.append(words))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "one"))
    return ran


def test_kernels_are_compiled_once_per_cache(compilations, monkeypatch, tmp_path):
    messages: list[str] = []
    assert warm.warm_kernels(messages.append)
    assert not warm.warm_kernels(messages.append)
    assert len(messages) == 1, "the reason of the wait is printed once per cache"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "another"))
    assert warm.warm_kernels(), "an empty cache is not warm, even if another one is"
    assert len(compilations) == 2


def test_kernels_are_recompiled_after_change(compilations, monkeypatch, tmp_path):
    package = tmp_path / "nyala"
    (package / "tablet").mkdir(parents=True)
    (package / "__init__.py").touch()
    kernel = package / "tablet" / "any_name.py"
    kernel.write_text("@njit\ndef f(): return 1\n")
    monkeypatch.setattr("nyala.__file__", str(package / "__init__.py"))
    assert warm.warm_kernels()
    (package / "other.py").write_text("x = 1\n")
    assert not warm.warm_kernels()
    kernel.write_text("@njit\ndef f(): return 2\n")
    assert warm.warm_kernels()


def test_failed_compilation_is_retried(monkeypatch, tmp_path):
    def broken(words, check):
        raise OSError("no compiler")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("subprocess.run", broken)
    with pytest.raises(OSError, match="no compiler"):
        warm.warm_kernels()
    assert not list(Path(tmp_path).iterdir())
