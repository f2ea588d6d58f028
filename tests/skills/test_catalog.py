import pytest

from skills import Catalog, SkillError, bundled, read_skill


def write(folder, name="a-skill", description="Does a thing.", body="Text.", **files):
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\nlicense: MIT\n---\n\n{body}\n")
    for path, text in files.items():
        (folder / path).write_text(text)
    return folder


def test_a_skill_is_read_with_its_files_and_unknown_keys_are_ignored(tmp_path):
    skill = read_skill(write(tmp_path / "s", more="detail"))
    assert (skill.name, skill.description, skill.text) == ("a-skill", "Does a thing.", "Text.\n")
    assert skill.files() == ("more",)
    assert skill.read("more") == "detail"


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "more/../../secret"])
def test_a_path_out_of_the_folder_is_refused(tmp_path, path):
    (tmp_path / "secret").write_text("s")
    skill = read_skill(write(tmp_path / "s"))
    with pytest.raises(SkillError, match="outside"):
        skill.read(path)


def test_a_symlink_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_text("s")
    skill = read_skill(write(tmp_path / "s"))
    (skill.folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(SkillError, match="outside"):
        skill.read("link")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("no front matter", "front matter"),
        ("---\nname: x\ndescription: y\n---\n", "go on with a text"),
        ("---\nname: [\n---\nText", "not YAML"),
        ("---\njust text\n---\nText", "not a mapping"),
        ("---\nname: No Caps\ndescription: y\n---\nText", "'name'"),
        ("---\nname: x\n---\nText", "'description'"),
    ],
)
def test_a_broken_skill_is_named_with_what_to_change(tmp_path, content, what):
    (tmp_path / "SKILL.md").write_text(content)
    with pytest.raises(SkillError, match=what):
        read_skill(tmp_path)


def test_two_skills_of_one_name_are_refused_not_guessed(tmp_path):
    write(tmp_path / "one")
    write(tmp_path / "two")
    with pytest.raises(SkillError, match="two skills"):
        Catalog([tmp_path])


def test_the_index_has_a_line_for_each_skill(tmp_path):
    write(tmp_path / "one", name="one")
    write(tmp_path / "deep" / "two", name="two", description="Another.")
    assert Catalog([tmp_path]).index().splitlines() == ["- two: Another.", "- one: Does a thing."]


def test_the_skills_that_ship_can_be_read():
    catalog = bundled()
    assert "hermes-atropos-environments" in catalog
    for skill in catalog.values():
        for path in skill.files():
            assert path.endswith(".py") or skill.read(path)
