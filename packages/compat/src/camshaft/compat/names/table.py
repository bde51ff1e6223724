"""The import names of earlier code, as data: modules, their names, the counterpart of each, and refused names."""

from __future__ import annotations

from collections.abc import Mapping

_HERE = "camshaft.compat.names"

ROOTS: Mapping[str, str] = {
    "pytorch_lightning": "",
    "lightning": "@lightning",
    "lightning.pytorch": "",
    "lightning.fabric": "@fabric",
    "lightning_fabric": "@fabric",
}
"""By package, the place in `MODULES` where its modules are."""

_STANDS_FOR: Mapping[str, str] = {
    "camshaft.compat": "Trainer LightningModule=TrainingModule LightningDataModule=DataModule Callback",
    "camshaft.compat.results": "EvalResult Result TrainResult",
    "camshaft.trainer.hyperparameters": "AttributeDict=Hyperparameters HyperparametersMixin",
    "camshaft.hooks_core": "ModelHooks DataHooks CheckpointHooks",
    "camshaft.callbacks": """
        BackboneFinetuning BaseFinetuning BasePredictionWriter BatchSizeFinder DeviceStatsMonitor EMAWeightAveraging
        GradientAccumulationScheduler LambdaCallback LearningRateFinder LearningRateMonitor
        LearningRateLogger=LearningRateMonitor ModelSummary RichModelSummary=ModelSummary OnExceptionCheckpoint
        ThroughputMonitor Timer WeightAveraging Checkpoint=ModelCheckpoint RichProgressBarTheme""",
    "camshaft.callbacks.weights.finetuning": "multiplicative",
    "camshaft.callbacks.progress.tqdm_progress_bar": "Tqdm",
    "camshaft.strategies": "ParallelStrategy Strategy=TorchStrategy",
    "torch.nn.parallel": "LightningDistributedDataParallel=DistributedDataParallel",
    f"{_HERE}.callbacks": """
        EarlyStopping FunctionalModelSummary=ModelSummary ModelCheckpoint PassThroughProfiler ProgressBar
        PyTorchProfiler RichProgressBar SimpleProfiler StochasticWeightAveraging TQDMProgressBar
        get_human_readable_count summarize""",
    f"{_HERE}.loggers": """
        CSVLogger MLFlowLogger TensorBoardLogger WandbLogger LightningLoggerBase Logger=LightningLoggerBase DummyLogger
        DummyExperiment rank_zero_experiment merge_dicts""",
    f"{_HERE}.strategies": """
        DDPPlugin DDPStrategy FSDPStrategy DDPFullyShardedNativeStrategy=FSDPStrategy
        SingleDevicePlugin=SingleDeviceStrategy SingleDeviceStrategy""",
    f"{_HERE}.functions": """
        CombinedLoader LightningDeprecationWarning PossibleUserWarning WarningCache apply_to_collection atomic_save
        auto_move_data data_loader distributed_available flatten_dict garbage_collection_cuda get_model_size_mb get_rank
        has_iterable_dataset has_len is_oom_error is_overridden is_picklable isolate_rng load logger move_data_to_device
        pl_worker_init_function rank_zero_debug rank_zero_deprecation rank_zero_info rank_zero_only rank_zero_warn
        recursive_detach reset_seed seed_everything str_to_bool str_to_bool_or_str""",
    f"{_HERE}.types_and_flags": """
        MisconfigurationException GradClipAlgorithmType LightningEnum RunningStage TrainerFn
        EPOCH_OUTPUT EVAL_DATALOADERS LRSchedulerType LRSchedulerTypeUnion LightningOptimizer LRSchedulerPLType
        OptimizerLRScheduler STEP_OUTPUT TRAIN_DATALOADERS _EVALUATE_OUTPUT _METRIC _METRIC_COLLECTION _NUMBER _PATH
        _PREDICT_OUTPUT APEX_AVAILABLE FLOAT16_EPSILON FLOAT32_EPSILON FLOAT64_EPSILON NATIVE_AMP_AVAILABLE
        NATIVE_AMP_AVALAIBLE TPU_AVAILABLE _APEX_AVAILABLE _DEEPSPEED_AVAILABLE _FAIRSCALE_AVAILABLE _HOROVOD_AVAILABLE
        _HYDRA_AVAILABLE _IS_INTERACTIVE _JSONARGPARSE_AVAILABLE _MLFLOW_AVAILABLE _NATIVE_AMP_AVAILABLE
        _OMEGACONF_AVAILABLE _RICH_AVAILABLE _TORCHTEXT_AVAILABLE _TORCHVISION_AVAILABLE _TORCH_GREATER_EQUAL_1_6
        _TORCH_GREATER_EQUAL_1_7 _TORCH_GREATER_EQUAL_1_8 _TORCH_GREATER_EQUAL_1_9 _TORCH_GREATER_EQUAL_1_10
        _TPU_AVAILABLE _WANDB_AVAILABLE _XLA_AVAILABLE _module_available _package_available __version__=VERSION
        lightning_version=LIGHTNING_VERSION""",
    "torchmetrics": "MetricCollection MeanSquaredLogError",
    "torchmetrics.utilities.distributed": "gather_all_tensors",
    "torchmetrics.utilities.data": "to_categorical to_onehot",
    f"{_HERE}.metrics": """
        AUROC Accuracy ConfusionMatrix ExplainedVariance F1 FBeta MAE=MeanAbsoluteError MSE=MeanSquaredError
        MeanAbsoluteError MeanSquaredError Metric PSNR Precision R2Score RMSE Recall SSIM
        accuracy auc confusion_matrix_of=confusion_matrix explained_variance f1 f1_score=f1 fbeta fbeta_score=fbeta
        mae=mean_absolute_error mean_absolute_error mean_squared_error mean_squared_log_error mse=mean_squared_error
        precision_of=precision psnr r2score recall_of=recall rmse ssim""",
}


def _counterparts() -> dict[str, str]:
    found = {}
    for module, entries in _STANDS_FOR.items():
        for entry in entries.split():
            name, _, ours = entry.partition("=")
            found[name] = f"{module}:{ours or name}"
    return found


COUNTERPARTS: Mapping[str, str] = _counterparts()
"""By earlier name, what it stands for: a module and a name in it, with ":" between."""

_CALLBACKS = """
    BackboneFinetuning BaseFinetuning BasePredictionWriter BatchSizeFinder Callback Checkpoint DeviceStatsMonitor
    EMAWeightAveraging EarlyStopping GradientAccumulationScheduler LambdaCallback LearningRateFinder LearningRateLogger
    LearningRateMonitor ModelCheckpoint ModelSummary OnExceptionCheckpoint ProgressBar RichModelSummary RichProgressBar
    StochasticWeightAveraging TQDMProgressBar ThroughputMonitor Timer WeightAveraging"""
_LOGGERS = "CSVLogger LightningLoggerBase Logger MLFlowLogger TensorBoardLogger WandbLogger"
_LOGGER_BASE = """
    DummyExperiment DummyLogger LightningLoggerBase Logger merge_dicts rank_zero_experiment rank_zero_only"""
_CLASSIFICATION = "AUROC Accuracy ConfusionMatrix F1 FBeta Precision Recall"
_REGRESSION = """
    ExplainedVariance MAE MSE MeanAbsoluteError MeanSquaredError MeanSquaredLogError PSNR R2Score RMSE SSIM"""
_CLASSIFICATION_FUNCTIONS = """
    accuracy auc confusion_matrix=confusion_matrix_of f1 f1_score fbeta fbeta_score precision=precision_of
    recall=recall_of to_categorical to_onehot"""
_REGRESSION_FUNCTIONS = """
    explained_variance mae mean_absolute_error mean_squared_error mean_squared_log_error mse psnr r2score rmse ssim"""
_RANK_ZERO = "rank_zero_debug rank_zero_deprecation rank_zero_info rank_zero_only rank_zero_warn"
_FLAGS = """
    APEX_AVAILABLE NATIVE_AMP_AVAILABLE NATIVE_AMP_AVALAIBLE TPU_AVAILABLE _APEX_AVAILABLE _DEEPSPEED_AVAILABLE
    _FAIRSCALE_AVAILABLE _HOROVOD_AVAILABLE _HYDRA_AVAILABLE _IS_INTERACTIVE _JSONARGPARSE_AVAILABLE
    _NATIVE_AMP_AVAILABLE _OMEGACONF_AVAILABLE _RICH_AVAILABLE _TORCHTEXT_AVAILABLE _TORCHVISION_AVAILABLE
    _TORCH_GREATER_EQUAL_1_6 _TORCH_GREATER_EQUAL_1_7 _TORCH_GREATER_EQUAL_1_8 _TORCH_GREATER_EQUAL_1_9
    _TORCH_GREATER_EQUAL_1_10 _TPU_AVAILABLE _XLA_AVAILABLE _module_available _package_available"""
_TYPES = """
    EPOCH_OUTPUT EVAL_DATALOADERS LRSchedulerPLType LRSchedulerType LRSchedulerTypeUnion OptimizerLRScheduler
    STEP_OUTPUT TRAIN_DATALOADERS _EVALUATE_OUTPUT _METRIC _METRIC_COLLECTION _NUMBER _PATH _PREDICT_OUTPUT"""
_FEWER_CLASSES = "Callback LightningDataModule LightningModule Trainer seed_everything"

MODULES: Mapping[str, str] = {
    "": f"{_FEWER_CLASSES} EvalResult TrainResult __version__ _logger=logger data_loader rank_zero_only",
    "@lightning": f"{_FEWER_CLASSES} __version__=lightning_version",
    "@fabric": "__version__=lightning_version seed_everything",
    "@fabric.utilities": f"{_RANK_ZERO} move_data_to_device",
    "@fabric.utilities.apply_func": "apply_to_collection move_data_to_device",
    "@fabric.utilities.cloud_io": "_load=load",
    "@fabric.utilities.rank_zero": _RANK_ZERO,
    "@fabric.utilities.seed": "isolate_rng pl_worker_init_function reset_seed seed_everything",
    "@fabric.utilities.types": "_PATH",
    "@fabric.utilities.warnings": "PossibleUserWarning",
    "__about__": "__version__",
    "callbacks": _CALLBACKS,
    "callbacks.base": "Callback",
    "callbacks.batch_size_finder": "BatchSizeFinder",
    "callbacks.callback": "Callback",
    "callbacks.checkpoint": "Checkpoint",
    "callbacks.device_stats_monitor": "DeviceStatsMonitor",
    "callbacks.early_stopping": "EarlyStopping",
    "callbacks.finetuning": "BackboneFinetuning BaseFinetuning multiplicative",
    "callbacks.gradient_accumulation_scheduler": "GradientAccumulationScheduler",
    "callbacks.lambda_function": "LambdaCallback",
    "callbacks.lr_finder": "LearningRateFinder",
    "callbacks.lr_logger": "LearningRateLogger",
    "callbacks.lr_monitor": "LearningRateMonitor",
    "callbacks.model_checkpoint": "ModelCheckpoint",
    "callbacks.model_summary": "ModelSummary",
    "callbacks.on_exception_checkpoint": "OnExceptionCheckpoint",
    "callbacks.prediction_writer": "BasePredictionWriter",
    "callbacks.progress": "ProgressBar RichProgressBar TQDMProgressBar",
    "callbacks.progress.base": "ProgressBar",
    "callbacks.progress.progress": "ProgressBar",
    "callbacks.progress.progress_bar": "ProgressBar",
    "callbacks.progress.rich_progress": "RichProgressBar RichProgressBarTheme",
    "callbacks.progress.tqdm_progress": "TQDMProgressBar Tqdm",
    "callbacks.pt_callbacks": "Callback EarlyStopping GradientAccumulationScheduler ModelCheckpoint",
    "callbacks.rich_model_summary": "RichModelSummary",
    "callbacks.stochastic_weight_avg": "StochasticWeightAveraging",
    "callbacks.throughput_monitor": "ThroughputMonitor",
    "callbacks.timer": "Timer",
    "callbacks.weight_averaging": "EMAWeightAveraging WeightAveraging",
    "core": "LightningDataModule LightningModule auto_move_data data_loader",
    "core.datamodule": "LightningDataModule",
    "core.decorators": "auto_move_data data_loader",
    "core.hooks": "CheckpointHooks DataHooks ModelHooks",
    "core.lightning": "LightningModule",
    "core.memory": "ModelSummary=FunctionalModelSummary get_human_readable_count",
    "core.mixins": "HyperparametersMixin",
    "core.mixins.hparams_mixin": "HyperparametersMixin",
    "core.module": "LightningModule",
    "core.optimizer": "LightningOptimizer",
    "core.root_module": "LightningModule",
    "core.step_result": "EvalResult Result TrainResult",
    "loggers": f"{_LOGGERS} DummyLogger rank_zero_experiment",
    "loggers.base": _LOGGER_BASE,
    "loggers.csv_logs": "CSVLogger",
    "loggers.logger": _LOGGER_BASE,
    "loggers.mlflow": "MLFlowLogger _MLFLOW_AVAILABLE",
    "loggers.tensorboard": "TensorBoardLogger",
    "loggers.wandb": "WandbLogger _WANDB_AVAILABLE",
    "logging": _LOGGERS,
    "logging.base": _LOGGER_BASE,
    "logging.mlflow": "MLFlowLogger",
    "logging.mlflow_logger": "MLFlowLogger",
    "logging.tensorboard": "TensorBoardLogger",
    "logging.wandb": "WandbLogger",
    "metrics": f"{_CLASSIFICATION} {_REGRESSION} Metric MetricCollection",
    "metrics.classification": _CLASSIFICATION,
    "metrics.functional": f"{_CLASSIFICATION_FUNCTIONS} {_REGRESSION_FUNCTIONS}",
    "metrics.functional.classification": _CLASSIFICATION_FUNCTIONS,
    "metrics.functional.regression": _REGRESSION_FUNCTIONS,
    "metrics.metric": "Metric MetricCollection",
    "metrics.regression": _REGRESSION,
    "metrics.utils": "to_categorical to_onehot",
    "overrides": "",
    "overrides.data_parallel": "LightningDistributedDataParallel",
    "plugins": "DDPPlugin SingleDevicePlugin",
    "plugins.ddp_plugin": "DDPPlugin",
    "plugins.training_type": "DDPPlugin SingleDevicePlugin",
    "plugins.training_type.ddp": "DDPPlugin",
    "plugins.training_type.single_device": "SingleDevicePlugin",
    "profiler": "PassThroughProfiler PyTorchProfiler SimpleProfiler",
    "profiler.profilers": "PassThroughProfiler PyTorchProfiler SimpleProfiler",
    "profiler.pytorch": "PyTorchProfiler",
    "profiler.simple": "SimpleProfiler",
    "profilers": "PassThroughProfiler PyTorchProfiler SimpleProfiler",
    "profilers.pytorch": "PyTorchProfiler",
    "profilers.simple": "SimpleProfiler",
    "pt_overrides": "",
    "pt_overrides.override_data_parallel": "LightningDistributedDataParallel",
    "root_module": "",
    "root_module.decorators": "data_loader",
    "root_module.hooks": "ModelHooks",
    "root_module.memory": "ModelSummary=FunctionalModelSummary get_human_readable_count",
    "root_module.root_module": "LightningModule",
    "strategies": """
        DDPFullyShardedNativeStrategy DDPStrategy FSDPStrategy ParallelStrategy SingleDeviceStrategy Strategy""",
    "strategies.ddp": "DDPStrategy",
    "strategies.fsdp": "FSDPStrategy",
    "strategies.fully_sharded_native": "DDPFullyShardedNativeStrategy",
    "strategies.parallel": "ParallelStrategy",
    "strategies.single_device": "SingleDeviceStrategy",
    "strategies.strategy": "Strategy",
    "trainer": "Trainer seed_everything",
    "trainer.seed": "seed_everything",
    "trainer.states": "RunningStage TrainerFn",
    "trainer.supporters": "CombinedLoader",
    "trainer.trainer": "Trainer seed_everything",
    "utilities": f"""
        {_RANK_ZERO} {_FLAGS} AttributeDict CombinedLoader FLOAT16_EPSILON FLOAT32_EPSILON FLOAT64_EPSILON
        GradClipAlgorithmType LightningEnum flatten_dict is_picklable move_data_to_device""",
    "utilities.apply_func": "apply_to_collection move_data_to_device",
    "utilities.cloud_io": "atomic_save load",
    "utilities.combined_loader": "CombinedLoader",
    "utilities.data": "has_iterable_dataset has_len",
    "utilities.debugging": "MisconfigurationException",
    "utilities.distributed": f"{_RANK_ZERO} _get_rank=get_rank distributed_available gather_all_tensors",
    "utilities.enums": "GradClipAlgorithmType LightningEnum",
    "utilities.exceptions": "MisconfigurationException",
    "utilities.imports": _FLAGS,
    "utilities.memory": "garbage_collection_cuda get_model_size_mb is_oom_error recursive_detach",
    "utilities.model_helpers": "is_overridden",
    "utilities.model_summary": "ModelSummary=FunctionalModelSummary get_human_readable_count summarize",
    "utilities.parsing": "AttributeDict flatten_dict is_picklable str_to_bool str_to_bool_or_str",
    "utilities.rank_zero": _RANK_ZERO,
    "utilities.seed": "isolate_rng pl_worker_init_function reset_seed seed_everything",
    "utilities.types": _TYPES,
    "utilities.warnings": """
        LightningDeprecationWarning PossibleUserWarning WarningCache rank_zero_deprecation rank_zero_warn""",
}
"""By module, without the package in front, its names; `name=other` where a name stands for what `COUNTERPARTS` has
under another one. "@" begins places that are not below the first package."""


def _submodules() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {place: set() for place in MODULES}
    for place in MODULES:
        parent, _, name = place.rpartition(".")
        if (place and not place.startswith("@")) or parent:
            found[parent].add(name)
    found["@lightning"] |= {"fabric", "pytorch"}
    return {place: frozenset(names) for place, names in found.items()}


SUBMODULES: Mapping[str, frozenset[str]] = _submodules()
"""By module, the modules below it."""

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
