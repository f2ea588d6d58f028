import pytest

from atroposlib.line_file import LineFile


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    file = LineFile(tmp_path / "lines", new=True)
    for line in (b"first", b"", b"x" * 100_000):
        file.append(line)
        assert (tmp_path / "lines").read_bytes().endswith(line + b"\n")
    file.close()
    file.close()
    with pytest.raises(FileExistsError):
        LineFile(tmp_path / "lines", new=True)


def test_a_line_that_was_cut_spoils_no_other(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"whole\ncut")
    for line in (b"next", b"last"):
        file = LineFile(path)
        file.append(line)
        file.close()
    assert path.read_bytes() == b"whole\ncut\nnext\nlast\n"
