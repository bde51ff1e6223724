"""What nothing stands for, and what to use instead, as data."""

from __future__ import annotations

from collections.abc import Mapping

_LOGGER = "No logger writes there. Use `WandbLogger`, `MLFlowLogger`, `TensorBoardLogger` or `CSVLogger`."
_FABRIC = "There is no trainer-less mode. Take the loops of `camshaft.loops`, or a strategy of `camshaft.strategies`."
_PRECISION = 'Precision is no plugin. Pass `Trainer(precision="16-mixed")`, "bf16-mixed", "16-true" or "64-true".'
_ENVIRONMENT = "Nothing needs to be passed: torchrun, SLURM and the trainer's own launcher are recognised."
_TPU = "No such devices are supported. Use CPUs or GPUs: `Trainer(accelerator=...)`."
_SHARDED = 'Pass `Trainer(strategy="sharded")`, or `ShardedStrategy(...)` of `camshaft.strategies`.'
_PROCESSES = 'Processes are started from the script itself. Pass `Trainer(strategy="ddp", devices=...)`.'
_ONE_PROCESS = 'One process uses one device. Pass `Trainer(strategy="ddp", devices=...)`, and divide the batch size.'
_CHECKPOINT_FILES = (
    "The strategy writes and reads checkpoints. Pass one with other methods: see `camshaft.hooks_core.protocols`."
)
_COMMAND_LINE = "Run `python -m camshaft.trainer fit --model MODULE:CLASS ...`, which reads such files, too."
_SEARCH = "Pass `callbacks=[LearningRateFinder()]` or `[BatchSizeFinder()]` of `camshaft.callbacks`."
_DEVICE_STATS = "Pass `callbacks=[DeviceStatsMonitor()]` of `camshaft.callbacks`."
_OWN_BAR = "Subclass `camshaft.callbacks.ProgressBar` and define `open_display`, or subclass `Callback`."
_HPARAMS_FILE = "Read or write such a file with the modules `csv`, `json` or `yaml`; checkpoints hold hyperparameters."
_LOOPS = "Loops are not to be replaced. Set `automatic_optimization = False` in the module, or see `camshaft.loops`."
_TORCHMETRICS = "Take it from `torchmetrics` or `torchmetrics.functional`, where `task=` says what is classified."
_OWN_METRIC = "Subclass `torchmetrics.Metric`, and define `update` and `compute`."
_TORCH_MEMORY = "Use `torch.cuda.memory_stats()` or `torch.cuda.memory_summary()`."
_WRAPPERS = "Strategies wrap the module by themselves. Pass `DDPStrategy(...)` of `camshaft.strategies`."
_INTERNAL = "It was a part of the trainer's inside. Use the trainer's attributes and hooks."
_EXAMPLE = "It was an example. Write a small module of your own."
_DISTRIBUTED = "Use the functions of `torch.distributed`, or `self.log(..., sync_dist=True)`."

REFUSED_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("CometLogger", "NeptuneLogger", "TestTubeLogger", "TrainsLogger", "LitLogger"), _LOGGER),
    "LoggerCollection": "Several loggers are a list: `Trainer(logger=[...])`, `trainer.loggers`.",
    **dict.fromkeys(("Fabric", "LightningLite"), _FABRIC),
    **dict.fromkeys(("LightningApp", "LightningFlow", "LightningWork"), "There are no apps here."),
    "LightningCLI": _COMMAND_LINE,
    **dict.fromkeys(("LightningArgumentParser", "SaveConfigCallback", "instantiate_class"), _COMMAND_LINE),
    **dict.fromkeys(("MODEL_REGISTRY", "DATAMODULE_REGISTRY", "CALLBACK_REGISTRY"), _COMMAND_LINE),
    "Tuner": _SEARCH,
    **dict.fromkeys(("GPUStatsMonitor", "XLAStatsMonitor"), _DEVICE_STATS),
    "ModelPruning": "Use `torch.nn.utils.prune` in the hooks of a callback.",
    "QuantizationAwareTraining": "Use the package `torchao`.",
    "ProgressBarBase": _OWN_BAR,
    **dict.fromkeys(
        ("NativeMixedPrecisionPlugin", "MixedPrecisionPlugin", "MixedPrecision", "ApexMixedPrecisionPlugin"), _PRECISION
    ),
    **dict.fromkeys(("PrecisionPlugin", "DoublePrecisionPlugin", "HalfPrecision"), _PRECISION),
    **dict.fromkeys(("LightningEnvironment", "SLURMEnvironment", "TorchElasticEnvironment"), _ENVIRONMENT),
    **dict.fromkeys(("ClusterEnvironment", "LSFEnvironment", "KubeflowEnvironment"), _ENVIRONMENT),
    **dict.fromkeys(("CheckpointIO", "TorchCheckpointIO", "AsyncCheckpointIO"), _CHECKPOINT_FILES),
    **dict.fromkeys(("DDPShardedPlugin", "DDPSpawnShardedPlugin", "DDPFullyShardedPlugin"), _SHARDED),
    **dict.fromkeys(("DDPShardedStrategy", "DDPSpawnShardedStrategy", "DDPFullyShardedStrategy"), _SHARDED),
    **dict.fromkeys(("DeepSpeedPlugin", "DeepSpeedStrategy", "ModelParallelStrategy", "PipePlugin"), _SHARDED),
    **dict.fromkeys(("DDPSpawnPlugin", "DDPSpawnStrategy", "HorovodPlugin", "HorovodStrategy"), _PROCESSES),
    **dict.fromkeys(("DataParallelPlugin", "DataParallelStrategy", "LightningDataParallel"), _ONE_PROCESS),
    **dict.fromkeys(("DDP2Plugin", "DDP2Strategy"), _ONE_PROCESS),
    **dict.fromkeys(("TPUSpawnPlugin", "TPUSpawnStrategy", "SingleTPUPlugin", "XLAStrategy"), _TPU),
    **dict.fromkeys(("TrainingTypePlugin", "ParallelPlugin", "Plugin"), "Pass a strategy: see `camshaft.strategies`."),
    "StrategyRegistry": "Pass a strategy object, which needs no name.",
    "AdvancedProfiler": "Run the script with `python -m cProfile`, or pass `callbacks=[HookTimeline()]`.",
    **dict.fromkeys(("BaseProfiler", "AbstractProfiler", "profilers.Profiler", "profiler.Profiler"),
                    "Profilers are callbacks. Subclass `Callback`, or see `camshaft.callbacks.Profiler`."),
    "XLAProfiler": _TPU,
    **dict.fromkeys(("TensorMetric", "NumpyMetric", "TensorCollectionMetric", "SklearnMetric"), _OWN_METRIC),
    **dict.fromkeys(("numpy_metric", "tensor_metric"), _OWN_METRIC),
    **dict.fromkeys(("get_gpu_memory_map", "get_memory_profile", "print_mem_stack", "count_mem_items"), _TORCH_MEMORY),
    **dict.fromkeys(("load_hparams_from_tags_csv", "save_hparams_to_tags_csv"), _HPARAMS_FILE),
    **dict.fromkeys(("load_hparams_from_yaml", "save_hparams_to_yaml", "update_hparams"), _HPARAMS_FILE),
    "ModelIO": "Use `load_from_checkpoint` of the module.",
    "GradInformation": "Pass `Trainer(track_grad_norm=2)`.",
    "grad_norm": "Use `torch.nn.utils.get_total_norm`, or pass `Trainer(track_grad_norm=2)`.",
    "DeviceDtypeModuleMixin": "Ask the module: `TrainingModule` has `device`, other modules have parameters.",
    **dict.fromkeys(("AllGatherGrad", "sync_ddp", "sync_ddp_if_available"), _DISTRIBUTED),
    **dict.fromkeys(("all_gather_ddp_if_available", "init_dist_connection"), _DISTRIBUTED),
    "register_ddp_comm_hook": "Pass `DDPStrategy(comm_hook=...)` of `camshaft.strategies`.",
    "extract_batch_size": "Pass `self.log(..., batch_size=...)`.",
    **dict.fromkeys(("LightningDistributedModule", "LightningParallelModule", "unwrap_lightning_module"), _WRAPPERS),
    **dict.fromkeys(("UnrepeatedDistributedSampler", "IndexBatchSamplerWrapper"),
                    "Evaluation counts each sample once by itself. Leave it out."),
    **dict.fromkeys(("lightning_getattr", "lightning_setattr", "lightning_hasattr"), "Use `getattr` and its like."),
    **dict.fromkeys(("get_init_args", "collect_init_args", "save_hyperparameters", "clean_namespace"),
                    "Call `self.save_hyperparameters()` in `__init__`."),
    **dict.fromkeys(("get_filesystem", "gfile", "pathlike"), "Use `pathlib`, or the package `fsspec`."),
    **dict.fromkeys(("TrainerState", "TrainerStatus"), "Ask `trainer.training`, `trainer.validating` and so on."),
    "TensorRunningAccum": "Use `torchmetrics.aggregation.RunningMean`.",
    **dict.fromkeys(("AMPType", "PrecisionType"), _PRECISION),
    **dict.fromkeys(("DistributedType", "DeviceType"), "Ask `trainer.world_size` and `trainer.strategy.device`."),
    "ModelSummaryMode": "Pass `ModelSummary(max_depth=1)`, or -1 for all layers.",
    "Accelerator": 'Name it: `Trainer(accelerator="cpu")`, "gpu" or "auto".',
    **dict.fromkeys(("CPUAccelerator", "GPUAccelerator", "CUDAAccelerator", "MPSAccelerator"),
                    'Name it: `Trainer(accelerator="cpu")`, "gpu" or "auto".'),
    **dict.fromkeys(("TPUAccelerator", "IPUAccelerator", "HPUAccelerator"), _TPU),
    **dict.fromkeys(("detect_nan_parameters", "print_nan_gradients"), "Pass `callbacks=[NonFiniteGuard()]`."),
    **dict.fromkeys(("is_cuda_out_of_memory", "is_cudnn_snafu"), "Catch `torch.OutOfMemoryError`."),
}  # fmt: skip
"""By name, or by module and name, what to use."""

REFUSED_MODULES: Mapping[str, str] = {
    "@lightning.app": "There are no apps here.",
    "@fabric": _FABRIC,
    "accelerators": 'Name it: `Trainer(accelerator="cpu")`, "gpu" or "auto".',
    "cli": _COMMAND_LINE,
    "cluster_environments": _ENVIRONMENT,
    "core.grads": "Pass `Trainer(track_grad_norm=2)`.",
    "core.saving": _HPARAMS_FILE,
    "demos": _EXAMPLE,
    "distributed": _DISTRIBUTED,
    "lite": _FABRIC,
    "loops": _LOOPS,
    "metrics": _TORCHMETRICS,
    "overrides": _WRAPPERS,
    "plugins.environments": _ENVIRONMENT,
    "plugins.io": _CHECKPOINT_FILES,
    "plugins.precision": _PRECISION,
    "root_module": "It is in `camshaft.trainer.TrainingModule`, if it is still there.",
    "testing": _EXAMPLE,
    "trainer": _INTERNAL,
    "tuner": _SEARCH,
    "utilities.argparse": "Use `Trainer.add_argparse_args` and `Trainer.from_argparse_args`.",
    "utilities.arg_parse": "Use `Trainer.add_argparse_args` and `Trainer.from_argparse_args`.",
    "utilities.auto_restart": "Runs resume exactly by themselves: `fit(ckpt_path=...)`.",
    "utilities.cli": _COMMAND_LINE,
    "utilities.deepspeed": "Run `python -m camshaft.strategies` for sharded checkpoints of ours.",
    "utilities.device_parser": "Pass `Trainer(accelerator=..., devices=...)`.",
    "utilities.finite_checks": "Pass `callbacks=[NonFiniteGuard()]` of `camshaft.callbacks`.",
    "utilities.grads": "Pass `Trainer(track_grad_norm=2)`.",
    "utilities.meta": "Build large modules in `configure_model`.",
    "utilities.upgrade_checkpoint": "Checkpoints of earlier releases are read as they are.",
    "utilities.xla_device": _TPU,
}
"""By module, what to use in place of it and of all that is below it."""
