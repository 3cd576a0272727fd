"""What other libraries call a setting, for `unknown key 'lr'; did you mean 'learning_rate'?`, and what the field calls
an algorithm that is one of ours with its switches set: `--algo rainbow`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Ours(NamedTuple):
    """A setting here that another library calls something else."""

    names: str
    """Of which the first that the algorithm has is meant."""
    meaning: str = ""
    """How their number becomes ours, where the two count or weigh something else."""


_HALF = "twice their number, as half of the squared error counts here"
_EXPLORATION = "one schedule, as {schedule: linear, start: 1, end: 0.05, until: 0.1}, until: share of the run"
_VALUE_CLIP = "true or false: the range is clip_range"

# Their name -> ours, as the pages From Stable-Baselines3, From RLlib and From CleanRL have it.
STABLE_BASELINES3 = {
    "learning_rate lr_schedule": Ours("learning_rate", "a number, or {schedule: linear, start: 3e-4, end: 0}"),
    "gamma": Ours("discount"),
    "gae_lambda": Ours("gae_lambda"),
    "n_steps": Ours("rollout_length n_step"),
    "batch_size": Ours("minibatch_size batch_size"),
    "n_epochs": Ours("num_epochs"),
    "clip_range": Ours("clip_range"),
    "clip_range_vf": Ours("clip_value_loss", _VALUE_CLIP),
    "ent_coef": Ours("entropy_coef"),
    "vf_coef": Ours("value_coef", _HALF),
    "max_grad_norm": Ours("max_gradient_norm"),
    "normalize_advantage": Ours("normalize_advantages"),
    "norm_obs": Ours("normalize_observations"),
    "norm_reward": Ours("normalize_rewards"),
    "target_kl": Ours("target_kl", "1.5 times their number: they stop beyond 1.5 of it"),
    "n_envs": Ours("num_envs_per_worker", "of each of num_rollout_workers"),
    "total_timesteps": Ours("stop.env_steps"),
    "eval_freq": Ours("evaluation.period", "env steps of all environments: eval_freq x n_envs"),
    "n_eval_episodes": Ours("evaluation.episodes"),
    "save_freq": Ours("checkpoint_period", "env steps of all environments: save_freq x n_envs"),
    "net_arch": Ours(
        "policy.hidden_sizes", "that of pi; policy.critic_hidden_sizes that of vf or qf, where they differ"
    ),
    "activation_fn": Ours("policy.activation"),
    "ortho_init": Ours("policy.orthogonal_init"),
    "log_std_init": Ours("policy.initial_log_std"),
    "use_sde": Ours(
        "policy.use_sde", "of PPO, A2C and SAC; log_std_init of the former two is ours - log(features) / 2"
    ),
    "sde_sample_freq": Ours("policy.sde_sample_freq"),
    "lstm_hidden_size": Ours("policy.core_size", "with policy.core=lstm"),
    "policy_class": Ours("policy.custom"),
    "wrapper_class": Ours("env_kwargs.wrappers"),
    "buffer_size": Ours("replay_capacity"),
    "learning_starts": Ours("learning_starts"),
    "train_freq": Ours("env_steps_per_update", "train_freq x n_envs / gradient_steps"),
    "gradient_steps": Ours("env_steps_per_update", "their inverse: train_freq x n_envs / gradient_steps"),
    "target_update_interval": Ours("target_period", "gradient steps: target_update_interval / env_steps_per_update"),
    "tau": Ours("target_tau"),
    "exploration_fraction exploration_initial_eps exploration_final_eps": Ours("epsilon", _EXPLORATION),
    "target_entropy": Ours("target_entropy"),
    "policy_delay": Ours("policy_delay"),
    "action_noise": Ours("exploration_noise", "a standard deviation, in units of half the width of the bounds"),
    "target_policy_noise": Ours("target_noise"),
    "target_noise_clip": Ours("target_noise_clip"),
    "n_sampled_goal": Ours("hindsight.n_sampled_goal"),
    "n_critics": Ours("num_critics"),
    "n_quantiles": Ours("num_quantiles num_atoms"),
    "top_quantiles_to_drop_per_net": Ours("dropped_quantiles"),
    "batch_norm_momentum": Ours("renorm_momentum"),
    "renorm_warmup_steps": Ours("renorm_warmup"),
}
RLLIB = {
    "lr": Ours("learning_rate"),
    "gamma": Ours("discount"),
    "lambda lambda_": Ours("gae_lambda"),
    "num_env_runners": Ours("num_rollout_workers"),
    "num_envs_per_env_runner": Ours("num_envs_per_worker"),
    "rollout_fragment_length": Ours("rollout_length"),
    "train_batch_size train_batch_size_per_learner": Ours(
        "rollout_length batch_size", "of PPO, A3C: their number / (num_rollout_workers x num_envs_per_worker)"
    ),
    "minibatch_size sgd_minibatch_size": Ours("minibatch_size batch_size"),
    "num_epochs num_sgd_iter": Ours("num_epochs"),
    "clip_param": Ours("clip_range"),
    "entropy_coeff": Ours("entropy_coef"),
    "vf_loss_coeff": Ours("value_coef", _HALF),
    "actor_lr": Ours("learning_rate"),
    "critic_lr": Ours("critic_learning_rate"),
    "grad_clip": Ours("max_gradient_norm", "of the global norm"),
    "observation_filter": Ours("normalize_observations", "true for MeanStdFilter"),
    "fcnet_hiddens": Ours("policy.hidden_sizes"),
    "fcnet_activation": Ours("policy.activation", "silu is their swish"),
    "fcnet_use_layernorm": Ours("policy.layer_norm"),
    "use_lstm use_attention": Ours("policy.core", "lstm, gru or attention"),
    "lstm_cell_size": Ours("policy.core_size"),
    "num_gpus_per_learner": Ours("learner.num_gpus"),
    "evaluation_interval": Ours("evaluation.period", "env steps, theirs are iterations"),
    "evaluation_duration": Ours("evaluation.episodes"),
    "checkpoint_frequency checkpoint_freq": Ours("checkpoint_period", "env steps, theirs are iterations"),
    "env_config": Ours("env_kwargs"),
    "replay_buffer_capacity capacity": Ours("replay_capacity"),
    "num_steps_sampled_before_learning_starts": Ours("learning_starts"),
    "training_intensity": Ours("env_steps_per_update", "their inverse: batch_size / training_intensity"),
    "target_network_update_freq": Ours(
        "target_period", "gradient steps: target_network_update_freq / env_steps_per_update"
    ),
    "tau": Ours("target_tau"),
    "epsilon epsilon_timesteps": Ours("epsilon", _EXPLORATION),
    "double_q": Ours("double"),
    "prioritized_replay_alpha": Ours("priority_alpha"),
    "prioritized_replay_beta": Ours("importance_beta"),
    "initial_alpha": Ours("initial_entropy_coef"),
    "episodes_per_batch": Ours("population_size", "pairs of episodes: half of it"),
    "noise_stdev": Ours("noise_std"),
    "l2_coeff": Ours("weight_decay"),
    "episode_reward_mean": Ours("stop.episode_return_mean"),
    "time_total_s": Ours("stop.wall_s"),
    "custom_model": Ours("policy.custom"),
}
CLEANRL = {
    "learning_rate anneal_lr": Ours("learning_rate", "to anneal: {schedule: linear, start: 2.5e-4, end: 0}"),
    "gamma": Ours("discount"),
    "gae_lambda": Ours("gae_lambda"),
    "num_envs": Ours("num_envs_per_worker"),
    "num_steps": Ours("rollout_length"),
    "num_minibatches": Ours("minibatch_size batch_size", "rows: num_envs x num_steps / num_minibatches"),
    "update_epochs": Ours("num_epochs"),
    "clip_coef": Ours("clip_range"),
    "clip_vloss": Ours("clip_value_loss"),
    "ent_coef": Ours("entropy_coef"),
    "vf_coef": Ours("value_coef"),
    "max_grad_norm": Ours("max_gradient_norm"),
    "norm_adv": Ours("normalize_advantages"),
    "target_kl": Ours("target_kl"),
    "total_timesteps": Ours("stop.env_steps"),
    "env_id": Ours("env"),
    "torch_deterministic": Ours("deterministic"),
    "cuda": Ours("learner.device", "auto, cpu or cuda"),
    "capture_video": Ours("evaluation.video_period", "with evaluation.period"),
    "buffer_size": Ours("replay_capacity"),
    "learning_starts": Ours("learning_starts"),
    "train_frequency": Ours("env_steps_per_update"),
    "target_network_frequency": Ours("target_period", "gradient steps: target_network_frequency / train_frequency"),
    "tau": Ours("target_tau"),
    "start_e end_e exploration_fraction": Ours("epsilon", _EXPLORATION),
    "alpha": Ours("priority_alpha entropy_coef"),
    "policy_frequency": Ours("policy_delay"),
    "exploration_noise": Ours("exploration_noise"),
    "policy_noise": Ours("target_noise"),
    "noise_clip": Ours("target_noise_clip"),
}
_OTHERS = {
    "lr_critic vf_lr": Ours("critic_learning_rate"),
    "stepsize step_size optim_stepsize": Ours("learning_rate"),
    "discount_factor": Ours("discount"),
    "lam": Ours("gae_lambda q_lambda"),
    "mini_batch_size minibatch": Ours("minibatch_size batch_size"),
    "nminibatches": Ours("minibatch_size batch_size", "rows, not the number of minibatches"),
    "epochs noptepochs": Ours("num_epochs"),
    "clip_ratio eps_clip cliprange": Ours("clip_range"),
    "entropy_coefficient ent_weight": Ours("entropy_coef"),
    "value_loss_coef": Ours("value_coef"),
    "clip_grad gradient_clip": Ours("max_gradient_norm"),
    "normalize_obs": Ours("normalize_observations"),
    "normalize_reward": Ours("normalize_rewards"),
    "use_centralized_v centralized_critic": Ours("multi_agent.centralized_critic"),
    "use_popart popart use_valuenorm value_normalization": Ours("normalize_value"),
    "clip_reward reward_clip": Ours("clip_rewards"),
    "max_kl": Ours("target_kl"),
    "kl_threshold": Ours("desired_kl"),
    "eps adam_eps rms_prop_eps": Ours("adam_epsilon optimizer_epsilon"),
    "nenvs envs_per_worker": Ours("num_envs_per_worker"),
    "num_workers n_workers num_actors num_cpu n_jobs": Ours("num_rollout_workers"),
    "timesteps timesteps_total num_timesteps total_steps max_steps": Ours("stop.env_steps"),
    "reward_threshold": Ours("stop.episode_return_mean"),
    "max_time": Ours("stop.wall_s", "seconds"),
    "eval_every": Ours("evaluation.period", "env steps"),
    "record_video": Ours("evaluation.video_period", "with evaluation.period"),
    "eval_episodes": Ours("evaluation.episodes"),
    "save_every": Ours("checkpoint_period", "env steps"),
    "hidden_size hidden_dim hiddens layers": Ours("policy.hidden_sizes"),
    "recurrent": Ours("policy.core"),
    "use_layer_norm layernorm": Ours("policy.layer_norm"),
    "critic_hidden_dims": Ours("policy.critic_hidden_sizes"),
    "gpu use_gpu": Ours("learner.device", "auto, cpu or cuda"),
    "env_name environment gym_id": Ours("env"),
    "make_kwargs": Ours("env_kwargs"),
    "wrappers wrapper env_wrapper frame_stack": Ours("env_kwargs.wrappers"),
    "memory_size": Ours("replay_capacity"),
    "start_training_after warmup_steps": Ours("learning_starts"),
    "prioritized_replay": Ours("prioritized"),
    "beta": Ours("importance_beta"),
    "init_temperature": Ours("initial_entropy_coef"),
    "policy_freq actor_delay": Ours("policy_delay"),
    "act_noise expl_noise": Ours("exploration_noise"),
    "pop_size popsize": Ours("population_size"),
    "sigma": Ours("noise_std"),
}


TABLES = {"Stable-Baselines3": STABLE_BASELINES3, "RLlib": RLLIB, "CleanRL": CLEANRL, "": _OTHERS}


def ours_of(theirs: str) -> Ours:
    """What is meant by a name, without names where nobody has it; where libraries mean something else by it, whose
    meaning is which."""
    found = [
        (library, ours) for library, table in TABLES.items() for names, ours in table.items() if theirs in names.split()
    ]
    names = dict.fromkeys(name for _, ours in found for name in ours.names.split())
    meanings = dict.fromkeys(
        f"{library}: {ours.meaning}" if library else ours.meaning for library, ours in found if ours.meaning
    )
    return Ours(" ".join(names), "; ".join(meanings))


_NOT_NEEDED = {
    "vf_clip_param": "RLlib limits the squared error by it, which has no counterpart: clip_value_loss limits V's move",
    "kl_coeff kl_target use_kl_loss": "there is no penalty on the KL divergence here: target_kl ends a round's epochs",
    "verbose progress_bar": "omit it: progress is always shown, on stderr",
    "log_interval": "omit it: metrics are written every round",
    "stats_window_size": "omit it: returns are means over the last 100 episodes",
    "tensorboard_log": "omit it: every run writes RUN/tensorboard/, and out (--out DIR) says where RUN is",
    "tb_log_name run_name exp_name": "out (--out DIR) names the run directory",
    "use_sde_at_warmup": "omit it: sac warms up with uniform actions",
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
            f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in self.settings.items()
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
    "td3bc": Switches("td3_bc", {}),
    "td3+bc": Switches("td3_bc", {}),
    "ddpg": Switches("td3", {"policy_delay": 1, "target_noise": 0.0}),
    "recurrentppo": Switches("ppo", {"policy.core": "lstm"}),
    "maskableppo": Switches("ppo", {}),
    "appo": Switches("impala", {"clip_range": 0.2}),
    "mappo": Switches("ppo", {"multi_agent.centralized_critic": True}),
    "ippo": Switches("ppo", {}),
}
"""By their names in small letters, without `_` and `-`."""


def switches_of(algo: str) -> Switches | None:
    """What an algorithm of this name is here, where it is one of ours with switches."""
    return ALGORITHMS_ELSEWHERE.get(algo.lower().replace("_", "").replace("-", ""))
