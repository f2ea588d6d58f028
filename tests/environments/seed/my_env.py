# ruff: noqa
# fmt: off
"""An environment typed from the documentation, fragment by fragment; only imports, samples and gaps are filled in."""

import os
import random

from environments.agent_loop import AgentResult
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.tool_context import ToolContext

BUILTIN_SAMPLES = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]


class MyEnv(HermesAgentBaseEnv):
    name = "my-env"
    env_config_cls = HermesAgentEnvConfig

    async def setup(self) -> None:
        """Called once at startup. Load datasets, initialize state."""
        # Try HuggingFace first, fallback to built-in samples
        try:
            from datasets import load_dataset
            ds = load_dataset("your/dataset", split="test")
            self._items = [dict(row) for row in ds]
        except Exception:
            self._items = BUILTIN_SAMPLES

        # Always split into train/eval
        random.shuffle(self._items)
        eval_size = max(20, int(len(self._items) * 0.1))
        self._eval_items = self._items[:eval_size]
        self._items = self._items[eval_size:]

    async def get_next_item(self) -> dict:
        """Return next item, cycling through dataset."""
        item = self._items[self._index % len(self._items)]
        self._index += 1
        return item

    def format_prompt(self, item: dict) -> str:
        """Convert a dataset item into the user-facing prompt."""
        return f"Research this question: {item['question']}"

    async def compute_reward(self, item, result: AgentResult, ctx: ToolContext) -> float:
        # Extract final response (last assistant message with content)
        final_response = ""
        tools_used = []
        for msg in reversed(result.messages):
            if msg.get("role") == "assistant" and msg.get("content") and not final_response:
                final_response = msg["content"]
            if msg.get("role") == "assistant" and msg.get("tool_calls"):
                for tc in msg["tool_calls"]:
                    fn = tc.get("function", {}) if isinstance(tc, dict) else {}
                    name = fn.get("name", "")
                    if name:
                        tools_used.append(name)

        if os.environ.get("SEED_REWARD") == "tests":
            # Run tests in the agent's sandbox
            result = ctx.terminal("pytest /workspace/test.py")
            return 1.0 if result["exit_code"] == 0 else 0.0

        # Score using LLM judge, heuristic, or ToolContext verification
        correctness = await self._llm_judge(item, final_response)
        return correctness

    async def evaluate(self, *args, **kwargs) -> None:
        import time, uuid
        from environments.agent_loop import HermesAgentLoop
        from environments.tool_context import ToolContext

        start_time = time.time()
        tools, valid_names = self._resolve_tools_for_group()
        samples = []

        for item in self._eval_items[:self.config.eval_size]:
            task_id = str(uuid.uuid4())
            messages = []
            if self.config.system_prompt:
                messages.append({"role": "system", "content": self.config.system_prompt})
            messages.append({"role": "user", "content": self.format_prompt(item)})

            agent = HermesAgentLoop(
                server=self.server,
                tool_schemas=tools,
                valid_tool_names=valid_names,
                max_turns=self.config.max_agent_turns,
                task_id=task_id,
                temperature=0.0,  # Deterministic for eval
                max_tokens=self.config.max_token_length,
                extra_body=self.config.extra_body,
            )
            result = await agent.run(messages)

            ctx = ToolContext(task_id)
            try:
                reward = await self.compute_reward(item, result, ctx)
            finally:
                ctx.cleanup()

            samples.append({"prompt": item["question"], "response": result.final_response, "reward": reward})

        eval_metrics = {"eval/mean_reward": sum(sample["reward"] for sample in samples) / len(samples)}
        await self.evaluate_log(metrics=eval_metrics, samples=samples,
                                start_time=start_time, end_time=time.time())

    async def wandb_log(self, wandb_metrics=None):
        if wandb_metrics is None:
            wandb_metrics = {}
        if self._reward_buffer:
            n = len(self._reward_buffer)
            wandb_metrics["train/mean_reward"] = sum(self._reward_buffer) / n
            self._reward_buffer.clear()
        await super().wandb_log(wandb_metrics)  # MUST call super


if __name__ == "__main__":
    MyEnv.cli()
