"""Rewards: numbers for completions.

@registry.register
class MyReward(RewardFunction):
    def compute(self, completions, **kwargs):
        return [1.0 if "good" in self.get_content(each) else 0.0 for each in completions]

rewards = registry.create({"type": "my", "weight": 0.5})(completions)
"""

from atroposlib.envs.reward_fns.combined_reward import CombinedReward
from atroposlib.envs.reward_fns.registry import RewardRegistry, registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction

__all__ = ["CombinedReward", "RewardFunction", "RewardRegistry", "registry"]
