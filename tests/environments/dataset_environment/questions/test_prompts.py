import pytest

from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions.prompts import RowReader


def conversation(row, shown=(), **settings):
    return list(RowReader(DatasetEnvConfig(**settings)).conversation(row, shown))


def user(content):
    return {"role": "user", "content": content}


def test_a_text_is_the_users_message_after_the_system_message():
    assert conversation({"q": "Why?"}, prompt_field="q", system_prompt="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        user("Why?"),
    ]


def test_templates_read_the_fields_of_a_row():
    row = {"q": "Why?", "choices": ["a", "b"], "odd name": "here"}
    template = "{{ q }}\n{% for c in choices %}{{ loop.index }}) {{ c }} {% endfor %}{{ row['odd name'] }}"
    assert conversation(row, prompt_template=template, system_prompt="{{ choices | length }} choices") == [
        {"role": "system", "content": "2 choices"},
        user("Why?\n1) a 2) b here"),
    ]


@pytest.mark.parametrize("setting", ["prompt_template", "system_prompt"])
def test_a_field_that_a_template_misspells_is_an_error_that_lists_the_fields(setting):
    with pytest.raises(ConfigError, match=rf"{setting}: 'questoin' is undefined. The fields of a row are: prompt, a"):
        conversation({"prompt": "x", "a": 1}, **{setting: "{{ questoin }}"})


def test_a_template_that_is_none_is_told_with_its_line():
    with pytest.raises(ConfigError, match="prompt_template, line 2"):
        conversation({"prompt": "x"}, prompt_template="a\n{% if %}")


def test_data_is_never_read_as_a_template():
    assert conversation({"prompt": "what is {{ 7 * 7 }}?"}) == [user("what is {{ 7 * 7 }}?")]


def test_chat_messages_are_taken_as_they_are_and_their_answer_is_the_right_one():
    chat = [
        {"role": "system", "content": "own"},
        {"from": "human", "value": "hello"},
        {"from": "gpt", "value": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "now?"}]},
        {"from": "gpt", "value": "42"},
    ]
    reader = RowReader(DatasetEnvConfig(system_prompt="not this"))
    assert reader.conversation({"prompt": chat}) == (
        {"role": "system", "content": "own"},
        user("hello"),
        {"role": "assistant", "content": "hi"},
        user("and now?"),
    )
    assert reader.answer({"prompt": chat}) == "42"


def test_solved_examples_stand_between_system_message_and_question():
    shown = [user("1+1?"), {"role": "assistant", "content": "2"}]
    assert [m["role"] for m in conversation({"prompt": "2+2?"}, shown, system_prompt="Add.")] == [
        *("system", "user", "assistant", "user")
    ]


@pytest.mark.parametrize("value", [{"a": 1}, ["a", "b"]])
def test_what_is_neither_text_nor_chat_asks_for_a_template(value):
    with pytest.raises(ConfigError, match="write a prompt_template"):
        conversation({"prompt": value})


@pytest.mark.parametrize("value", [None, "", "  ", [], [{"role": "assistant", "content": "only an answer"}]])
def test_a_row_without_a_question_is_told_apart(value):
    assert not RowReader(DatasetEnvConfig()).is_question({"prompt": value})
