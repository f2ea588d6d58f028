"""Any data set as an environment: questions from its rows, one answer each, judged by reward functions.

``dataset_env`` is the environment, ``launch_local_dataset_run`` a whole training run in one command,
``dataset_local_server`` a look at some scored answers, ``workbench`` the place to try prompts and rewards by hand.
"""
