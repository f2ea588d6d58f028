import json

from environments.local_run.curve import draw_png, draw_text, read_curve, read_rewards


def record(step, **more):
    return json.dumps({"step": step, "train/reward_mean": 0.5, "train/tokens_per_s": 10, **more}) + "\n"


def test_a_line_that_is_still_being_written_is_left_for_the_next_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(record(1) + record(2)[:20])
    assert [point.step for point in read_curve(path)] == [1]
    path.write_text(record(1) + record(2))
    assert [point.step for point in read_curve(path)] == [1, 2]


def test_a_run_that_has_written_nothing_has_an_empty_curve(tmp_path):
    assert read_curve(tmp_path / "metrics.jsonl") == []


def test_the_curve_is_drawn_as_a_picture_and_as_text(tmp_path):
    rewards = [(step, step / 10) for step in range(10)]
    draw_png(rewards, {"before": 0.2, "after": 0.9}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "(training step)" in draw_text(rewards)


def test_the_rewards_of_all_rollouts_are_read_from_the_environment(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/mean_reward": 0.25}\n{"step": 2}\n{"step": 3, "train/mean_reward": 0.5}\n')
    assert read_rewards(path) == [(1, 0.25), (3, 0.5)]
