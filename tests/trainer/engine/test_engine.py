"""What an engine takes on, and how it ends."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.trainer.tiny_model import CONTEXT, make_model, make_tokenizer
from trainer.engine.sampling import SamplingParams
from trainer.engine.scheduler import Engine, EngineConfig
from trainer.engine.sequence import Completion
from trainer.errors import EngineFailed, UsageError

SIZES = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def _engine(model: torch.nn.Module | None = None, **config: object) -> Engine:
    return Engine(model or make_model(), make_tokenizer(), EngineConfig(**config))


def test_length_is_what_was_asked_for_or_what_the_model_has_positions_for() -> None:
    assert _engine().max_model_len == CONTEXT
    assert _engine(max_model_len=100).max_model_len == 100
    with pytest.raises(UsageError, match="--max-model-len 600 is more than the 512"):
        _engine(max_model_len=600)


def test_length_is_cut_to_what_memory_holds_unless_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    bytes_of_256_tokens = 256 * 256
    assert _engine(kv_cache_bytes=bytes_of_256_tokens).max_model_len == 256
    assert "--kv-cache-gb" in caplog.text
    with pytest.raises(UsageError, match="does not fit"):
        _engine(kv_cache_bytes=bytes_of_256_tokens, max_model_len=400)


def test_other_architectures_with_full_attention_are_served_exactly() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    engine = _engine(model)
    engine.start()
    done = engine.submit([5, 6, 7], SamplingParams(max_tokens=5, ignore_eos=True)).result(timeout=30)
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([[5, 6, 7, *done.token_ids]])).logits[0, 2:-1], -1)
    assert done.logprobs == pytest.approx(
        expected.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0].tolist(), abs=1e-4
    )
    engine.close()


def test_sliding_windows_bound_the_length() -> None:
    assert _engine(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=64))).max_model_len == 64
    assert _engine(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None))).max_model_len == 256


def test_attention_that_the_cache_does_not_serve_is_refused() -> None:
    model = make_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UsageError, match=r"linear_attention.*--engine-url"):
        _engine(model)


def test_close_fails_what_runs_and_refuses_what_comes() -> None:
    engine = _engine()
    engine.start()
    running: Future[Completion] = engine.submit([5], SamplingParams(max_tokens=400, ignore_eos=True))
    engine.close()
    engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        running.result(timeout=10)
    with pytest.raises(EngineFailed, match="closed"):
        engine.submit([5], SamplingParams(max_tokens=1))
    assert not engine.alive


def test_model_that_raises_fails_its_batch_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    engine = _engine(model)
    engine.start()

    def out_of_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = model.register_forward_pre_hook(out_of_memory)
    with pytest.raises(EngineFailed, match="out of memory"):
        engine.submit([5], SamplingParams(max_tokens=3)).result(timeout=10)
    hook.remove()
    assert len(engine.submit([5], SamplingParams(max_tokens=3, ignore_eos=True)).result(timeout=10).token_ids) == 3
    assert "The model failed" in caplog.text
    engine.close()
