"""A GRPO trainer, and the inference engine that it can carry inside.

``python -m trainer.grpo`` trains, ``python -m trainer.serve`` serves. From the bottom: ``loss`` and ``advantages``
(pure), ``batches`` and ``microbatches`` (groups to samples to tensors), ``learner`` (the optimizer), ``weights`` (to
the engine), ``checkpoints``, ``trajectories`` (batches from the server), ``loop`` (all of it in order), ``run`` (puts
the parts together).
"""
