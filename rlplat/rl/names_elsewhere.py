"""What other libraries call a setting, for `unknown key 'lr'; did you mean 'learning_rate'?`, and what the field calls
an algorithm that is one of ours with its switches set: `--algo rainbow`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_HERE = {
    # here (the first name that the algorithm has): in Stable-Baselines3, CleanRL, RLlib and their like
    "learning_rate": "lr lr_schedule stepsize step_size anneal_lr optim_stepsize",
    "discount": "gamma discount_factor",
    "gae_lambda": "lambda lambda_ lam",
    "rollout_length n_step": "n_steps num_steps rollout_fragment_length train_batch_size train_batch_size_per_learner",
    "minibatch_size batch_size": "batch_size mini_batch_size minibatch sgd_minibatch_size num_minibatches nminibatches",
    "num_epochs": "n_epochs update_epochs epochs num_sgd_iter noptepochs",
    "clip_range": "clip_coef clip_param clip_ratio eps_clip cliprange",
    "clip_value_loss": "clip_vloss clip_range_vf vf_clip_param",
    "entropy_coef": "ent_coef entropy_coeff entropy_coefficient ent_weight",
    "value_coef": "vf_coef vf_loss_coeff value_loss_coef",
    "max_gradient_norm": "max_grad_norm grad_clip clip_grad gradient_clip",
    "normalize_advantages": "normalize_advantage norm_adv",
    "normalize_observations": "norm_obs observation_filter normalize_obs",
    "normalize_rewards": "norm_reward normalize_reward",
    "clip_rewards": "clip_reward reward_clip",
    "target_kl": "kl_target max_kl",
    "adam_epsilon optimizer_epsilon": "eps adam_eps rms_prop_eps",
    "num_envs_per_worker": "n_envs num_envs nenvs num_envs_per_env_runner envs_per_worker",
    "num_rollout_workers": "num_workers num_env_runners n_workers num_actors num_cpu n_jobs",
    "stop.env_steps": "total_timesteps timesteps timesteps_total num_timesteps total_steps max_steps",
    "stop.episode_return_mean": "episode_reward_mean reward_threshold",
    "stop.wall_s": "time_total_s max_time",
    "evaluation.period": "eval_freq evaluation_interval eval_every",
    "evaluation.video_period": "capture_video record_video",
    "evaluation.episodes": "n_eval_episodes eval_episodes evaluation_duration",
    "checkpoint_period": "save_freq checkpoint_freq checkpoint_frequency save_every",
    "policy.hidden_sizes": "net_arch fcnet_hiddens hidden_size hidden_dim hiddens layers",
    "policy.activation": "activation_fn fcnet_activation",
    "policy.core": "use_lstm use_attention recurrent",
    "policy.core_size": "lstm_cell_size lstm_hidden_size",
    "policy.orthogonal_init": "ortho_init",
    "policy.initial_log_std": "log_std_init",
    "policy.custom": "custom_model policy_class",
    "learner.device": "cuda gpu use_gpu",
    "learner.num_gpus": "num_gpus_per_learner",
    "env": "env_id env_name environment gym_id",
    "env_kwargs": "env_config make_kwargs",
    "env_kwargs.wrappers": "wrappers wrapper env_wrapper wrapper_class frame_stack",
    "deterministic": "torch_deterministic",
    "replay_capacity": "buffer_size memory_size replay_buffer_capacity",
    "learning_starts": "start_training_after num_steps_sampled_before_learning_starts warmup_steps",
    "env_steps_per_update": "train_freq train_frequency training_intensity gradient_steps",
    "target_period": "target_update_interval target_network_frequency target_network_update_freq",
    "target_tau": "tau",
    "epsilon": "exploration_fraction exploration_final_eps exploration_initial_eps start_e end_e epsilon_timesteps",
    "double": "double_q",
    "prioritized": "prioritized_replay",
    "priority_alpha": "prioritized_replay_alpha alpha",
    "importance_beta": "prioritized_replay_beta beta",
    "initial_entropy_coef": "initial_alpha init_temperature",
    "policy_delay": "policy_frequency policy_freq actor_delay",
    "exploration_noise": "action_noise act_noise expl_noise",
    "target_noise": "target_policy_noise policy_noise",
    "target_noise_clip": "noise_clip",
    "population_size": "pop_size popsize episodes_per_batch",
    "noise_std": "noise_stdev sigma",
    "weight_decay": "l2_coeff",
}

NAMES_ELSEWHERE: dict[str, tuple[str, ...]] = {
    theirs: tuple(ours.split()) for ours, names in _HERE.items() for theirs in names.split()
}
"""Their name -> what may be meant here, of which the first that the algorithm has is suggested."""


_NOT_NEEDED = {
    "verbose progress_bar": "omit it: progress is always shown, on stderr",
    "log_interval": "omit it: metrics are written every round",
    "stats_window_size": "omit it: returns are means over the last 100 episodes",
    "tensorboard_log": "omit it: every run writes RUN/tensorboard/, and out (--out DIR) says where RUN is",
    "tb_log_name run_name exp_name": "out (--out DIR) names the run directory",
    "use_sde sde_sample_freq use_sde_at_warmup": "there is no state-dependent exploration here: omit it",
    "reset_num_timesteps": "omit it: a new run counts from 0, and resume (--resume RUN) continues the count",
    "rollout_buffer_class rollout_buffer_kwargs": "omit it: rollouts are kept as the algorithm needs them",
    "replay_buffer_class replay_buffer_kwargs": "the replay is set by replay_capacity, prioritized and hindsight",
    "optimize_memory_usage": "omit it: the replay keeps every observation once",
    "monitor_wrapper": "omit it: returns and lengths are always in the metrics",
    "eval_env": "omit it: evaluations make environments of their own; evaluation.period says how often",
    "_init_setup_model": "omit it: rlplat.train makes the networks",
    "asynchronous": "omit it: --algo apex is DQN with actors that do not wait for each other",
    "save_path": "checkpoints are in RUN/checkpoints/, and out (--out DIR) says where RUN is",
}
NOT_NEEDED: dict[str, str] = {theirs: text for names, text in _NOT_NEEDED.items() for theirs in names.split()}
"""Settings of other libraries that have no counterpart here -> what is so without them."""

_BY_OBSERVATION = "omit it, the network follows the observations: an MLP for vectors, a CNN for images"
VALUES_ELSEWHERE: dict[str, str] = {
    "MlpPolicy": f"{_BY_OBSERVATION}; policy.hidden_sizes sets its layers",
    "CnnPolicy": f"{_BY_OBSERVATION}; policy.encoder chooses another",
    "MultiInputPolicy": f"{_BY_OBSERVATION}, each part of a Dict its own",
    "MlpLstmPolicy": f"{_BY_OBSERVATION}; policy.core=lstm adds the memory",
    "CnnLstmPolicy": f"{_BY_OBSERVATION}; policy.core=lstm adds the memory",
    "MultiInputLstmPolicy": f"{_BY_OBSERVATION}; policy.core=lstm adds the memory",
}
"""Values of other libraries' settings -> what to do here."""


class Switches(NamedTuple):
    """An algorithm of ours, with settings that the user's own win over."""

    algo: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        """`--algo dqn --set double=true n_step=3`."""
        switches = " ".join(
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in self.settings.items()
        )
        return f"--algo {self.algo}" + (f" --set {switches}" if switches else "")


_RAINBOW = {
    "double": True,
    "dueling": True,
    "n_step": 3,
    "distributional": "c51",
    "noisy": True,
    "epsilon": 0.0,
    "prioritized": True,
}
ALGORITHMS_ELSEWHERE = {
    "a2c": Switches("a3c", {"num_rollout_workers": 0}),
    "doubledqn": Switches("dqn", {"double": True}),
    "c51": Switches("dqn", {"distributional": "c51"}),
    "qrdqn": Switches("dqn", {"distributional": "qr"}),
    "rainbow": Switches("dqn", _RAINBOW),
    "sacdiscrete": Switches("discrete_sac", {}),
    "discretesac": Switches("discrete_sac", {}),
    "ddpg": Switches("td3", {"policy_delay": 1, "target_noise": 0.0}),
    "recurrentppo": Switches("ppo", {"policy.core": "lstm"}),
    "maskableppo": Switches("ppo", {}),
    "appo": Switches("impala", {"clip_range": 0.2}),
}
"""By their names in small letters, without `_` and `-`."""


def switches_of(algo: str) -> Switches | None:
    """What an algorithm of this name is here, where it is one of ours with switches."""
    return ALGORITHMS_ELSEWHERE.get(algo.lower().replace("_", "").replace("-", ""))
