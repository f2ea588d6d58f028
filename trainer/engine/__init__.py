"""An inference engine for one policy, small enough to live inside the trainer.

It speaks the part of vLLM's HTTP dialect that reinforcement learning needs, and answers with the very token ids it
consumed and sampled. From the bottom: ``kv_cache`` (rows of keys and values), ``sampling`` (logits to tokens),
``sequence`` (one completion in the making), ``sampler`` (many of them, batched), ``scheduler`` (the thread that owns
the model), ``chat`` (messages to tokens and back), ``protocol`` and ``answers`` (the wire), ``server`` (the routes).
"""
