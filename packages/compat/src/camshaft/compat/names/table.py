"""The import names of earlier code, as data: modules, their names, the counterpart of each, and refused names."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HERE = "camshaft.compat.names"

ROOTS: Mapping[str, str] = {
    "pytorch_lightning": "",
    "lightning": "@lightning",
    "lightning.pytorch": "",
    "lightning.fabric": "@fabric",
    "lightning_fabric": "@fabric",
    "lightning_lite": "@fabric",
}
"""By package, the place in `MODULES` where its modules are."""

_STOCK_CALLBACKS = """
    BackboneFinetuning BaseFinetuning BasePredictionWriter DeviceStatsMonitor EMAWeightAveraging
    GradientAccumulationScheduler LambdaCallback ModelPruning OnExceptionCheckpoint
    ThroughputMonitor Timer WeightAveraging"""
_ADAPTED_CALLBACKS = """
    EarlyStopping LearningRateMonitor StochasticWeightAveraging"""
_RICH_COLUMNS = """
    BatchesProcessedColumn CustomBarColumn CustomProgress CustomTimeColumn MetricsTextColumn ProcessingSpeedColumn"""
_FINDERS = "BatchSizeFinder LearningRateFinder"
_LOGGERS = "CSVLogger CometLogger LightningLoggerBase Logger MLFlowLogger TensorBoardLogger TestTubeLogger WandbLogger"
_LOGGER_BASE = """
    DummyExperiment DummyLogger LightningLoggerBase Logger merge_dicts rank_zero_experiment rank_zero_only"""
_PROFILERS = "AdvancedProfiler PassThroughProfiler Profiler PyTorchProfiler SimpleProfiler"
_COLLECTING = """
    AUROC AveragePrecision ConfusionMatrix F1 FBeta HammingDistance IoU Precision PrecisionRecallCurve ROC Recall"""
_CLASSIFICATION = f"Accuracy {_COLLECTING}"
_REGRESSION = """
    ExplainedVariance MAE MSE MeanAbsoluteError MeanSquaredError MeanSquaredLogError PSNR R2Score RMSE SSIM"""
_CLASSIFICATION_FUNCTIONS = """
    accuracy auc auroc average_precision confusion_matrix=confusion_matrix_of dice_score f1 f1_score fbeta fbeta_score
    get_num_classes hamming_distance iou multiclass_auroc multiclass_precision_recall_curve multiclass_roc
    precision=precision_of precision_recall precision_recall_curve recall=recall_of roc stat_scores
    stat_scores_multiple_classes to_categorical to_onehot"""
_REGRESSION_FUNCTIONS = """
    explained_variance mae mean_absolute_error mean_squared_error mean_squared_log_error mse psnr r2score rmse rmsle
    ssim"""
_CONVERTING_METRICS = "NumpyMetric TensorCollectionMetric TensorMetric"
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
_SAME_TYPES = """
    CollectibleGroup LRSchedulerConfig LRSchedulerConfigType LRSchedulerTypeTuple Optimizable OptimizerConfig
    OptimizerLRSchedulerConfig SIGTERMException Steppable UntypedStorage _DEVICE _MAP_LOCATION_TYPE _PRECISION_INPUT
    _PRECISION_INPUT_INT _PRECISION_INPUT_STR _PRECISION_INPUT_STR_ALIAS"""
_ACCELERATORS = """
    Accelerator AcceleratorRegistry CPUAccelerator CUDAAccelerator MPSAccelerator find_usable_cuda_devices get_cpu_stats
    is_cuda_available num_cuda_devices"""
_ENVIRONMENTS = """
    ClusterEnvironment LightningEnvironment SLURMEnvironment TorchElasticEnvironment find_free_network_port"""
_PRECISIONS = "DoublePrecision FSDPPrecision HalfPrecision MixedPrecision"
_EARLIER_PRECISIONS = """
    DoublePrecisionPlugin=DoublePrecision HalfPrecisionPlugin=HalfPrecision MixedPrecisionPlugin=MixedPrecision
    NativeMixedPrecisionPlugin=MixedPrecision PrecisionPlugin=precision_plugin"""
_REGISTRIES = "CALLBACK_REGISTRY DATAMODULE_REGISTRY LR_SCHEDULER_REGISTRY MODEL_REGISTRY OPTIMIZER_REGISTRY"
_CHECKPOINT_IO = "AsyncCheckpointIO CheckpointIO TorchCheckpointIO"
_DEMOS = """
    BoringDataModule BoringDataModuleNoLen BoringModel DemoModel IterableBoringDataModule ManualOptimBoringModel
    RandomDataset RandomDictDataset RandomIterableDataset RandomIterableDatasetWithLen"""
_SAVING = """
    CHECKPOINT_PAST_HPARAMS_KEYS convert get_filesystem load_hparams_from_tags_csv load_hparams_from_yaml
    parse_class_init_keys save_hparams_to_tags_csv save_hparams_to_yaml update_hparams"""
_CONSTRUCTORS = """
    clean_namespace collect_init_args get_init_args lightning_getattr lightning_hasattr lightning_setattr
    save_hyperparameters"""
_OF_MODELS = """
    CONVERSION_DTYPES convert_tensors_to_scalars convert_to_tensors detect_nan_parameters extract_batch_size
    find_shared_parameters get_torchvision_model grad_norm has_len_all_ranks is_cuda_out_of_memory is_cudnn_snafu
    is_dataclass_instance is_out_of_cpu_memory is_param_in_hook_signature measure_flops print_nan_gradients
    set_shared_parameters sized_len
    suggested_max_num_workers warning_cache"""

_OF_SUMMARIES = """
    LEFTOVER_PARAMS_NAME LayerSummary NOT_APPLICABLE PARAMETER_NUM_UNITS UNKNOWN_SIZE get_formatted_model_size
    get_human_readable_count parse_batch_shape summarize"""

_ARGPARSE = "add_argparse_args from_argparse_args get_init_arguments_and_types parse_argparser parse_env_variables"
_COLLECTIVES = "AllGatherGrad all_gather_ddp_if_available sync_ddp sync_ddp_if_available"

_CLI = """
    ArgsType LRSchedulerCallable LRSchedulerTypeTuple OptimizerCallable SaveConfigCallback instantiate_class"""

_STANDS_FOR: Mapping[str, str] = {
    "camshaft.compat": "Trainer LightningModule=TrainingModule LightningDataModule=DataModule Callback",
    "camshaft.compat.results": "EvalResult Result TrainResult",
    "camshaft.compat.hyperparameters": "HyperparametersMixin",
    "camshaft.trainer.hyperparameters": "AttributeDict=Hyperparameters",
    "camshaft.trainer.states": "TrainerState TrainerStatus",
    "camshaft.hooks_core": "ModelHooks DataHooks CheckpointHooks",
    "camshaft.callbacks": f"""
        {_STOCK_CALLBACKS} Checkpoint EarlyStoppingReason
        Throughput TrainingSpikeException WriteInterval get_available_flops measure_flops
        CometLogger PassThroughProfiler Profiler=ActionProfiler BaseProfiler=ActionProfiler
        AbstractProfiler=ActionProfiler""",
    f"{_HERE}.trainer.spike_detection": "SpikeDetection",
    "camshaft.callbacks.weights.finetuning": "multiplicative",
    "torch.nn.parallel": "DistributedDataParallel LightningDistributedDataParallel=DistributedDataParallel",
    f"{_HERE}.trainer.callbacks": f"""
        {_ADAPTED_CALLBACKS} LearningRateLogger=LearningRateMonitor""",
    f"{_HERE}.trainer.progress_bars": """
        ProgressBar TQDMProgressBar ProgressBarBase=ProgressBar get_standard_metrics=version_metrics""",
    f"{_HERE}.trainer.tqdm_bar": "Tqdm",
    f"{_HERE}.trainer.model_checkpoint": "ModelCheckpoint",
    f"{_HERE}.trainer.rich_progress_bar": "RichProgressBar RichProgressBarTheme",
    f"{_HERE}.trainer.rich_columns": _RICH_COLUMNS,
    f"{_HERE}.trainer.model_summary": "ModelSummary RichModelSummary",
    f"{_HERE}.utilities.model_summaries": f"FunctionalModelSummary=ModelSummary {_OF_SUMMARIES}",
    f"{_HERE}.trainer.profilers": "AdvancedProfiler PyTorchProfiler SimpleProfiler",
    "camshaft.callbacks.profiling.pytorch_profiler": "RegisterRecordFunction",
    f"{_HERE}.trainer.finders": f"{_FINDERS} Tuner _LRFinder=LRFinder",
    f"{_HERE}.trainer.loggers": """
        fabric_logger=FabricLogger CSVLogger ExperimentWriter MLFlowLogger TensorBoardLogger TestTubeLogger WandbLogger
        LightningLoggerBase
        Logger=LightningLoggerBase DummyLogger DummyExperiment rank_zero_experiment merge_dicts""",
    "camshaft.compat.private_loops": """
        _EvaluationLoop=EvaluationLoop _FitLoop=FitLoop _PredictionLoop=PredictLoop _TrainingEpochLoop=FitLoop""",
    "camshaft.compat.private_parts": """
        _CallbackConnector=CallbackConnector _CheckpointConnector=CheckpointConnector _DataConnector=DataConnector
        _LoggerConnector=LoggerConnector _SignalConnector=SignalConnector""",
    f"{_HERE}.plugins.samplers": "DistributedSamplerWrapper",
    f"{_HERE}.plugins.checkpoint_io": "AsyncCheckpointIO CheckpointIO TorchCheckpointIO",
    f"{_HERE}.plugins.fsdp": "FSDPStrategy DDPFullyShardedNativeStrategy=FSDPStrategy",
    f"{_HERE}.plugins.registries": """
        CALLBACK_REGISTRY DATAMODULE_REGISTRY LR_SCHEDULER_REGISTRY MODEL_REGISTRY OPTIMIZER_REGISTRY
        _register_classes=register_classes""",
    f"{_HERE}.plugins.base_strategy": """
        SingleDevicePlugin=SingleDeviceStrategy SingleDeviceStrategy Strategy TrainingTypePlugin=Strategy""",
    f"{_HERE}.plugins.strategies": """
        DDPPlugin DDPStrategy ParallelPlugin=ParallelStrategy ParallelStrategy StrategyRegistry""",
    f"{_HERE}.utilities.combined_loader": "CombinedLoader",
    f"{_HERE}.utilities.compiled": "from_compiled to_uncompiled",
    "camshaft.compat.arguments.argparse_arguments": _ARGPARSE,
    f"{_HERE}.trainer.gpu_stats": "GPUStatsMonitor",
    f"{_HERE}.utilities.collectives": _COLLECTIVES,
    f"{_HERE}.utilities.earlier_mixins": """
        DeviceDtypeModuleMixin _DeviceDtypeModuleMixin=DeviceDtypeModuleMixin
        _pl_migrate_checkpoint=pl_migrate_checkpoint migrate_checkpoint pl_legacy_patch unwrap_lightning_module""",
    f"{_HERE}.utilities.functions": f"""
        {_RANK_ZERO} _get_rank=get_rank EarlierCombinedLoader
        LightningDeprecationWarning PossibleUserWarning WarningCache apply_to_collection
        atomic_save auto_move_data convert_inf data_loader distributed_available do_nothing_closure flatten_dict
        garbage_collection_cuda get_model_size_mb get_rank has_iterable_dataset has_len is_oom_error
        is_overridden is_picklable isolate_rng load
        disable_possible_user_warnings logger move_data_to_device pl_worker_init_function rank_prefixed_message
        recursive_detach reset_seed seed_everything str_to_bool str_to_bool_or_str""",
    f"{_HERE}.utilities.types_and_flags": f"""
        {_FLAGS} {_TYPES} {_SAME_TYPES} FLOAT16_EPSILON FLOAT32_EPSILON FLOAT64_EPSILON AMPType DeviceType
        DistributedType GradClipAlgorithmType Interval LightningEnum LightningOptimizer
        MisconfigurationException RunningStage TrainerFn _MLFLOW_AVAILABLE _WANDB_AVAILABLE
        __version__=VERSION lightning_version=LIGHTNING_VERSION""",
    f"{_HERE}.plugins.accelerators": f"""
        {_ACCELERATORS} ACCELERATOR_REGISTRY=AcceleratorRegistry _AcceleratorConnector=AcceleratorConnector
        _parse_gpu_ids=parse_gpu_ids""",
    f"{_HERE}.plugins.environments": _ENVIRONMENTS,
    f"{_HERE}.plugins.precision": f"{_PRECISIONS} precision_plugin=Precision",
    f"{_HERE}.modules.boring_classes": _DEMOS,
    f"{_HERE}.utilities.saving": f"""
        {_SAVING} _default_map_location=default_map_location _is_dir=is_dir
        _is_local_file_protocol=is_local_file_protocol _load_from_checkpoint=load_from_checkpoint
        _load_state=load_state""",
    f"{_HERE}.utilities.constructors": _CONSTRUCTORS,
    f"{_HERE}.utilities.model_functions": f"""
        {_OF_MODELS} _ModuleMode=ModuleMode _add_prefix=add_prefix _convert_params=convert_params
        _optimizer_to_device=optimizer_to_device _optimizers_to_device=optimizers_to_device
        _restricted_classmethod=restricted_classmethod check_finite_loss""",
    "lightning_utilities.core.imports": "RequirementCache compare_version module_available package_available",
    f"{_HERE}.trainer.fabric_loggers": """
        fabric_csv_logger=FabricCSVLogger fabric_tensorboard_logger=FabricTensorBoardLogger""",
    "torch.distributed": "ProcessGroup ReduceOp",
    "torch.distributed.constants": "default_pg_timeout",
    "torchmetrics": "MetricCollection MeanSquaredLogError",
    "torchmetrics.utilities.distributed": "gather_all_tensors",
    "torchmetrics.utilities.data": """
        METRIC_EPS dim_zero_cat dim_zero_mean dim_zero_sum select_topk to_categorical to_onehot""",
    f"{_HERE}.trainer.command_line": "LightningArgumentParser LightningCLI",
    "camshaft.trainer.cli": f"{_CLI} ReduceLROnPlateau",
    f"{_HERE}.modules.metrics": """
        Accuracy ExplainedVariance MAE=MeanAbsoluteError MSE=MeanSquaredError MeanAbsoluteError MeanSquaredError Metric
        PSNR R2Score RMSE SSIM""",
    f"{_HERE}.modules.collecting_metrics": _COLLECTING,
    "torchmetrics.metric": "CompositionalMetric",
    "torchmetrics.utilities.checks": "_input_format_classification",
    f"{_HERE}.modules.functional_metrics": """
        accuracy auc auroc average_precision bleu_score class_reduce confusion_matrix_of=confusion_matrix dice_score
        embedding_similarity explained_variance f1 f1_score fbeta fbeta_score get_num_classes hamming_distance
        image_gradients iou mae=mean_absolute_error mean_absolute_error mean_squared_error mean_squared_log_error
        mse=mean_squared_error multiclass_auroc multiclass_precision_recall_curve multiclass_roc
        precision_of=precision precision_recall precision_recall_curve psnr r2score recall_of=recall
        reduce_metric=reduce rmse rmsle roc ssim stat_scores stat_scores_multiple_classes""",
    f"{_HERE}.modules.converting_metrics": f"""
        {_CONVERTING_METRICS} SklearnMetric numpy_metric sync_metric=sync_ddp tensor_collection_metric
        tensor_metric""",
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

_FEWER_CLASSES = "Callback LightningDataModule LightningModule Trainer seed_everything"

MODULES: Mapping[str, str] = {
    "": f"{_FEWER_CLASSES} EvalResult TrainResult __version__ _logger=logger data_loader rank_zero_only",
    "@lightning": f"{_FEWER_CLASSES} __version__=lightning_version",
    "@fabric": "__version__=lightning_version seed_everything",
    "@fabric.loggers": """
        CSVLogger=fabric_csv_logger Logger=fabric_logger TensorBoardLogger=fabric_tensorboard_logger
        rank_zero_experiment""",
    "@fabric.loggers.csv_logs": "CSVLogger=fabric_csv_logger",
    "@fabric.loggers.logger": "Logger=fabric_logger rank_zero_experiment",
    "@fabric.loggers.tensorboard": "TensorBoardLogger=fabric_tensorboard_logger",
    "@fabric.plugins.precision.precision": "Precision=precision_plugin",
    "@fabric.utilities": f"{_RANK_ZERO} move_data_to_device",
    "@fabric.utilities.apply_func": """
        apply_to_collection convert_tensors_to_scalars convert_to_tensors move_data_to_device""",
    "@fabric.utilities.cloud_io": """
        _atomic_save=atomic_save _is_dir _is_local_file_protocol _load=load get_filesystem""",
    "@fabric.utilities.device_dtype_mixin": "_DeviceDtypeModuleMixin",
    "@fabric.utilities.distributed": "DistributedSamplerWrapper",
    "@fabric.utilities.optimizer": "_optimizer_to_device _optimizers_to_device",
    "@fabric.utilities.rank_zero": _RANK_ZERO,
    "@fabric.utilities.registry": "_register_classes",
    "@fabric.utilities.seed": "isolate_rng pl_worker_init_function reset_seed seed_everything",
    "@fabric.utilities.spike": "TrainingSpikeException",
    "@fabric.utilities.throughput": "Throughput get_available_flops measure_flops",
    "@fabric.utilities.types": "_PATH",
    "@fabric.utilities.warnings": "PossibleUserWarning",
    "__about__": "__version__",
    "accelerators": _ACCELERATORS,
    "callbacks": f"""
        {_STOCK_CALLBACKS} {_ADAPTED_CALLBACKS} {_FINDERS} Callback Checkpoint GPUStatsMonitor LearningRateLogger
        ProgressBar TQDMProgressBar
        ModelCheckpoint ModelSummary ProgressBarBase RichModelSummary RichProgressBar""",
    "callbacks.base": "Callback",
    "callbacks.batch_size_finder": "BatchSizeFinder",
    "callbacks.callback": "Callback",
    "callbacks.checkpoint": "Checkpoint",
    "callbacks.device_stats_monitor": "DeviceStatsMonitor",
    "callbacks.early_stopping": "EarlyStopping EarlyStoppingReason",
    "callbacks.finetuning": "BackboneFinetuning BaseFinetuning multiplicative",
    "callbacks.gradient_accumulation_scheduler": "GradientAccumulationScheduler",
    "callbacks.gpu_stats_monitor": "GPUStatsMonitor",
    "callbacks.lambda_function": "LambdaCallback",
    "callbacks.lr_finder": "LearningRateFinder",
    "callbacks.lr_logger": "LearningRateLogger",
    "callbacks.lr_monitor": "LearningRateMonitor",
    "callbacks.model_checkpoint": "ModelCheckpoint",
    "callbacks.model_summary": "ModelSummary",
    "callbacks.on_exception_checkpoint": "OnExceptionCheckpoint",
    "callbacks.prediction_writer": "BasePredictionWriter WriteInterval",
    "callbacks.progress": "ProgressBar ProgressBarBase RichProgressBar TQDMProgressBar",
    "callbacks.progress.base": "ProgressBar ProgressBarBase get_standard_metrics",
    "callbacks.progress.progress": "ProgressBar",
    "callbacks.progress.progress_bar": "ProgressBar get_standard_metrics",
    "callbacks.progress.rich_progress": f"RichProgressBar RichProgressBarTheme {_RICH_COLUMNS}",
    "callbacks.progress.tqdm_progress": "TQDMProgressBar Tqdm convert_inf",
    "callbacks.pruning": "ModelPruning",
    "callbacks.pt_callbacks": "Callback EarlyStopping GradientAccumulationScheduler ModelCheckpoint",
    "callbacks.rich_model_summary": "RichModelSummary",
    "callbacks.spike": "SpikeDetection",
    "callbacks.stochastic_weight_avg": "StochasticWeightAveraging",
    "callbacks.throughput_monitor": "ThroughputMonitor",
    "callbacks.timer": "Interval Timer",
    "callbacks.weight_averaging": "EMAWeightAveraging WeightAveraging",
    "cli": f"{_CLI} LightningArgumentParser LightningCLI LRSchedulerType LRSchedulerTypeUnion ReduceLROnPlateau",
    "core": "LightningDataModule LightningModule auto_move_data data_loader",
    "core.datamodule": "LightningDataModule",
    "core.decorators": "auto_move_data data_loader",
    "core.hooks": "CheckpointHooks DataHooks ModelHooks",
    "core.lightning": "LightningModule",
    "core.memory": "ModelSummary=FunctionalModelSummary get_human_readable_count",
    "core.mixins": "DeviceDtypeModuleMixin HyperparametersMixin _DeviceDtypeModuleMixin",
    "core.mixins.device_dtype_mixin": "DeviceDtypeModuleMixin",
    "core.mixins.hparams_mixin": "HyperparametersMixin",
    "core.module": "LightningModule",
    "core.optimizer": "LightningOptimizer do_nothing_closure",
    "core.root_module": "LightningModule",
    "core.saving": f"{_SAVING} _default_map_location _load_from_checkpoint _load_state",
    "core.step_result": "EvalResult Result TrainResult",
    "demos": "",
    "demos.boring_classes": _DEMOS,
    "loggers": f"{_LOGGERS} DummyLogger rank_zero_experiment",
    "loggers.base": _LOGGER_BASE,
    "loggers.comet": "CometLogger",
    "loggers.csv_logs": "CSVLogger ExperimentWriter",
    "loggers.logger": _LOGGER_BASE,
    "loggers.mlflow": "MLFlowLogger _MLFLOW_AVAILABLE",
    "loggers.tensorboard": "TensorBoardLogger",
    "loggers.test_tube": "TestTubeLogger",
    "loggers.wandb": "WandbLogger _WANDB_AVAILABLE",
    "logging": _LOGGERS,
    "logging.base": _LOGGER_BASE,
    "logging.mlflow": "MLFlowLogger",
    "logging.mlflow_logger": "MLFlowLogger",
    "logging.tensorboard": "TensorBoardLogger",
    "logging.test_tube": "TestTubeLogger",
    "logging.test_tube_logger": "TestTubeLogger",
    "logging.wandb": "WandbLogger",
    "loops": "_EvaluationLoop _FitLoop _PredictionLoop _TrainingEpochLoop",
    "loops.evaluation_loop": "_EvaluationLoop",
    "loops.fit_loop": "_FitLoop",
    "loops.prediction_loop": "_PredictionLoop",
    "loops.training_epoch_loop": "_TrainingEpochLoop",
    "metrics": f"""
        {_CLASSIFICATION} {_REGRESSION} {_CONVERTING_METRICS} Metric MetricCollection SklearnMetric numpy_metric
        tensor_metric""",
    "metrics.classification": _CLASSIFICATION,
    **{
        f"metrics.classification.{module}": _CLASSIFICATION
        for module in re.findall(
            r"\w+",
            """accuracy auroc average_precision confusion_matrix f_beta hamming_distance iou precision_recall
            precision_recall_curve roc""",
        )
    },
    "metrics.classification.helpers": "_input_format_classification",
    "metrics.compositional": "CompositionalMetric",
    "metrics.converters": "numpy_metric sync_ddp=sync_metric tensor_collection_metric tensor_metric",
    "metrics.functional": f"""
        {_CLASSIFICATION_FUNCTIONS} {_REGRESSION_FUNCTIONS} bleu_score embedding_similarity image_gradients""",
    **{
        f"metrics.functional.{module}": _CLASSIFICATION_FUNCTIONS
        for module in re.findall(
            r"\w+",
            """accuracy auc auroc average_precision classification confusion_matrix f_beta hamming_distance iou
            precision_recall precision_recall_curve roc stat_scores""",
        )
    },
    "metrics.functional.nlp": "bleu_score",
    "metrics.functional.reduction": "class_reduce reduce=reduce_metric",
    "metrics.functional.regression": _REGRESSION_FUNCTIONS,
    "metrics.functional.self_supervised": "embedding_similarity",
    "metrics.metric": f"{_CONVERTING_METRICS} Metric MetricCollection",
    "metrics.regression": _REGRESSION,
    **{
        f"metrics.regression.{module}": _REGRESSION
        for module in re.findall(
            r"\w+",
            """explained_variance mean_absolute_error mean_squared_error mean_squared_log_error psnr r2score ssim""",
        )
    },
    "metrics.sklearns": "SklearnMetric",
    "metrics.utils": """
        METRIC_EPS _input_format_classification class_reduce dim_zero_cat dim_zero_mean dim_zero_sum get_num_classes
        reduce=reduce_metric select_topk to_categorical to_onehot""",
    "overrides": "",
    "overrides.base": "unwrap_lightning_module",
    "overrides.data_parallel": "LightningDistributedDataParallel",
    "plugins": f"""
        {_PRECISIONS} {_EARLIER_PRECISIONS} {_CHECKPOINT_IO} DDPPlugin ParallelPlugin Precision=precision_plugin
        SingleDevicePlugin TrainingTypePlugin""",
    "plugins.ddp_plugin": "DDPPlugin",
    "plugins.environments": _ENVIRONMENTS,
    "plugins.precision": f"{_PRECISIONS} {_EARLIER_PRECISIONS} Precision=precision_plugin",
    "plugins.precision.precision": "Precision=precision_plugin",
    "plugins.training_type": "DDPPlugin ParallelPlugin SingleDevicePlugin TrainingTypePlugin",
    "plugins.training_type.ddp": "DDPPlugin",
    "plugins.training_type.parallel": "ParallelPlugin",
    "plugins.training_type.single_device": "SingleDevicePlugin",
    "plugins.training_type.training_type_plugin": "TrainingTypePlugin",
    "profiler": f"{_PROFILERS} AbstractProfiler BaseProfiler",
    "profiler.advanced": "AdvancedProfiler",
    "profiler.base": "AbstractProfiler BaseProfiler PassThroughProfiler Profiler",
    "profiler.profiler": "Profiler",
    "profiler.profilers": f"{_PROFILERS} AbstractProfiler BaseProfiler",
    "profiler.pytorch": "PyTorchProfiler RegisterRecordFunction",
    "profiler.simple": "SimpleProfiler",
    "profilers": _PROFILERS,
    "profilers.advanced": "AdvancedProfiler",
    "profilers.base": "PassThroughProfiler Profiler",
    "profilers.profiler": "Profiler",
    "profilers.pytorch": "PyTorchProfiler RegisterRecordFunction",
    "profilers.simple": "SimpleProfiler",
    "pt_overrides": "",
    "pt_overrides.override_data_parallel": "LightningDistributedDataParallel",
    "root_module": "",
    "root_module.decorators": "data_loader",
    "root_module.hooks": "ModelHooks",
    "root_module.memory": "ModelSummary=FunctionalModelSummary get_human_readable_count",
    "root_module.root_module": "LightningModule",
    "strategies": """
        DDPFullyShardedNativeStrategy DDPStrategy FSDPStrategy ParallelStrategy SingleDeviceStrategy Strategy
        StrategyRegistry""",
    "strategies.ddp": "DDPStrategy",
    "strategies.fsdp": "FSDPStrategy",
    "strategies.fully_sharded_native": "DDPFullyShardedNativeStrategy",
    "strategies.parallel": "ParallelStrategy",
    "strategies.single_device": "SingleDeviceStrategy",
    "strategies.strategy": "Strategy",
    "trainer": "Trainer seed_everything",
    "trainer.connectors": "",
    "trainer.connectors.accelerator_connector": "_AcceleratorConnector",
    "trainer.connectors.callback_connector": "_CallbackConnector",
    "trainer.connectors.checkpoint_connector": "_CheckpointConnector CheckpointConnector=_CheckpointConnector",
    "trainer.connectors.data_connector": "_DataConnector",
    "trainer.connectors.logger_connector": "_LoggerConnector",
    "trainer.connectors.logger_connector.logger_connector": "_LoggerConnector",
    "trainer.connectors.signal_connector": "_SignalConnector",
    "trainer.seed": "seed_everything",
    "trainer.states": "RunningStage TrainerFn TrainerState TrainerStatus",
    "trainer.supporters": "CombinedLoader=EarlierCombinedLoader",
    "trainer.trainer": "Trainer seed_everything",
    "tuner": "Tuner",
    "tuner.lr_finder": "_LRFinder",
    "tuner.tuning": "Tuner",
    "utilities": f"""
        {_RANK_ZERO} {_FLAGS} AMPType AttributeDict CombinedLoader DeviceType DistributedType
        FLOAT16_EPSILON FLOAT32_EPSILON FLOAT64_EPSILON
        GradClipAlgorithmType LightningEnum flatten_dict is_picklable move_data_to_device""",
    "utilities.apply_func": "apply_to_collection move_data_to_device",
    "utilities.argparse": _ARGPARSE,
    "utilities.argparse_utils": _ARGPARSE,
    "utilities.cli": f"{_CLI} {_REGISTRIES} LightningArgumentParser LightningCLI LRSchedulerType LRSchedulerTypeUnion",
    "utilities.cloud_io": "atomic_save get_filesystem load",
    "utilities.combined_loader": "CombinedLoader",
    "utilities.compile": "from_compiled to_uncompiled",
    "utilities.data": """
        extract_batch_size has_iterable_dataset has_len has_len_all_ranks is_dataclass_instance sized_len""",
    "utilities.debugging": "MisconfigurationException",
    "utilities.device_dtype_mixin": "DeviceDtypeModuleMixin",
    "utilities.device_parser": "parse_gpu_ids=_parse_gpu_ids",
    "utilities.distributed": f"""
        {_RANK_ZERO} {_COLLECTIVES} _get_rank=get_rank distributed_available gather_all_tensors""",
    "utilities.enums": "AMPType DeviceType DistributedType GradClipAlgorithmType LightningEnum",
    "utilities.exceptions": "MisconfigurationException SIGTERMException",
    "utilities.finite_checks": "detect_nan_parameters print_nan_gradients",
    "utilities.grads": "grad_norm",
    "utilities.imports": _FLAGS,
    "utilities.memory": """
        is_cuda_out_of_memory is_cudnn_snafu is_out_of_cpu_memory garbage_collection_cuda get_model_size_mb
        is_oom_error recursive_detach""",
    "utilities.migration": "migrate_checkpoint pl_legacy_patch",
    "utilities.migration.utils": "_pl_migrate_checkpoint migrate_checkpoint pl_legacy_patch",
    "utilities.model_helpers": "_ModuleMode _restricted_classmethod get_torchvision_model is_overridden",
    "utilities.model_summary": f"ModelSummary=FunctionalModelSummary {_OF_SUMMARIES}",
    "utilities.model_summary.model_summary": f"ModelSummary=FunctionalModelSummary {_OF_SUMMARIES}",
    "utilities.parsing": f"""
        {_CONSTRUCTORS} parse_class_init_keys AttributeDict flatten_dict is_picklable str_to_bool
        str_to_bool_or_str""",
    "utilities.rank_zero": f"{_RANK_ZERO} WarningCache rank_prefixed_message",
    "utilities.seed": "isolate_rng pl_worker_init_function reset_seed seed_everything",
    "utilities.types": f"{_TYPES} {_SAME_TYPES} DistributedDataParallel",
    "utilities.warnings": """
        LightningDeprecationWarning PossibleUserWarning WarningCache rank_zero_deprecation rank_zero_warn""",
}
"""By module, without the package in front, its names; `name=other` where a name stands for what `COUNTERPARTS` has
under another one. "@" begins places that are not below the first package."""

EVERYWHERE = frozenset(
    f"""
    {_ACCELERATORS} {_CHECKPOINT_IO} {_ENVIRONMENTS} {_PRECISIONS} {_REGISTRIES} {_SAME_TYPES} {_RANK_ZERO} {_OF_MODELS}
    ACCELERATOR_REGISTRY AttributeDict _register_classes default_pg_timeout
    CombinedLoader LightningDeprecationWarning LightningEnum MisconfigurationException
    PossibleUserWarning
    ProcessGroup ReduceOp RequirementCache WarningCache _ModuleMode _PATH _add_prefix _convert_params _get_rank
    _parse_gpu_ids
    apply_to_collection check_finite_loss compare_version disable_possible_user_warnings has_iterable_dataset has_len
    isolate_rng module_available move_data_to_device package_available pl_worker_init_function rank_prefixed_message
    reset_seed seed_everything
    """.split()
)
"""Names that stand for the same wherever a release of Lightning defines them."""

FLAG = re.compile(r"_[A-Z0-9_]+_AVAILABLE|_[A-Z]+_GREATER_EQUAL_[0-9_]+|_IS_WINDOWS|_IS_INTERACTIVE")
"""The names of flags about this machine, which are found in the module `FLAGS`."""

FLAGS = f"{_HERE}.utilities.types_and_flags"


def _submodules() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {place: set() for place in MODULES}
    for place in MODULES:
        parent, _, name = place.rpartition(".")
        if (place and not place.startswith("@")) or parent:
            found.setdefault(parent, set()).add(name)
    found["@lightning"] |= {"fabric", "pytorch"}
    return {place: frozenset(names) for place, names in found.items()}


SUBMODULES: Mapping[str, frozenset[str]] = _submodules()
"""By module, the modules below it."""

_REFUSED: Mapping[str, str] = {
    "No logger writes there. Use `WandbLogger`, `MLFlowLogger`, `TensorBoardLogger` or `CSVLogger`.": (
        "NeptuneLogger TrainsLogger LitLogger"
    ),
    "Several loggers are a list: `Trainer(logger=[...])`, `trainer.loggers`.": "LoggerCollection",
    "There is no trainer-less mode. Take the loops of `camshaft.loops`, or a strategy of `camshaft.strategies`.": (
        "Fabric LightningLite @fabric. lite."
    ),
    "There are no apps here.": "LightningApp LightningFlow LightningWork @lightning.app.",
    "Use `Tuner` of `camshaft.trainer`.": "tuner.",
    "Pass `callbacks=[DeviceStatsMonitor()]` of `camshaft.callbacks`.": "XLAStatsMonitor",
    "Use the package `torchao`.": "QuantizationAwareTraining",
    'Precision is no plugin. Pass `Trainer(precision="16-mixed")`, "bf16-mixed", "16-true" or "64-true".': """
        ApexMixedPrecisionPlugin BitsandbytesPrecision DeepSpeedPrecision TransformerEnginePrecision XLAPrecision
        PrecisionType plugins.precision. @fabric.plugins.precision.""",
    "Nothing needs to be passed: torchrun, SLURM and the trainer's own launcher are recognised.": """
        KubeflowEnvironment LSFEnvironment MPIEnvironment XLAEnvironment cluster_environments. plugins.environments.
        @fabric.plugins.environments.""",
    "Subclass `CheckpointIO`, and pass it as `Trainer(plugins=...)`.": (
        "XLACheckpointIO plugins.io. @fabric.plugins.io."
    ),
    'Pass `Trainer(strategy="sharded")`, or `ShardedStrategy(...)` of `camshaft.strategies`.': """
        DDPShardedPlugin DDPSpawnShardedPlugin DDPFullyShardedPlugin DDPShardedStrategy DDPSpawnShardedStrategy
        DDPFullyShardedStrategy DeepSpeedPlugin DeepSpeedStrategy ModelParallelStrategy PipePlugin""",
    'Processes are started from the script itself. Pass `Trainer(strategy="ddp", devices=...)`.': (
        "DDPSpawnPlugin DDPSpawnStrategy HorovodPlugin HorovodStrategy"
    ),
    'One process uses one device. Pass `Trainer(strategy="ddp", devices=...)`, and divide the batch size.': (
        "DataParallelPlugin DataParallelStrategy LightningDataParallel DDP2Plugin DDP2Strategy"
    ),
    "No such devices are supported. Use CPUs or GPUs: `Trainer(accelerator=...)`.": """
        TPUSpawnPlugin TPUSpawnStrategy SingleTPUPlugin XLAStrategy XLAProfiler TPUAccelerator IPUAccelerator
        HPUAccelerator utilities.xla_device.""",
    "Pass a strategy: see `camshaft.strategies`.": "Plugin STRATEGY_REGISTRY",
    "Pass `Trainer(sync_batchnorm=True)`.": "LayerSync TorchSyncBatchNorm",
    "Use `torch.cuda.memory_stats()` or `torch.cuda.memory_summary()`.": (
        "get_gpu_memory_map get_memory_profile print_mem_stack count_mem_items"
    ),
    "Use `load_from_checkpoint` of the module.": "ModelIO",
    "Pass `Trainer(track_grad_norm=2)`.": "GradInformation core.grads.",
    "Use the functions of `torch.distributed`, or `self.log(..., sync_dist=True)`.": (
        "init_dist_connection distributed."
    ),
    "Pass `DDPStrategy(comm_hook=...)` of `camshaft.strategies`.": "register_ddp_comm_hook",
    "Strategies wrap the module by themselves. Pass `DDPStrategy(...)` of `camshaft.strategies`.": (
        "LightningDistributedModule LightningParallelModule overrides."
    ),
    "Evaluation counts each sample once by itself. Leave it out.": (
        "UnrepeatedDistributedSampler IndexBatchSamplerWrapper"
    ),
    "Use `pathlib`, or the package `fsspec`.": "gfile pathlike",
    "Use `torchmetrics.aggregation.RunningMean`.": "TensorRunningAccum",
    "Pass `ModelSummary(max_depth=1)`, or -1 for all layers.": "ModelSummaryMode",
    'Name it: `Trainer(accelerator="cpu")`, "gpu" or "auto".': ("GPUAccelerator accelerators."),
    "It was an example. Write a small module of your own.": "demos. testing.",
    "Loops are not to be replaced. Set `automatic_optimization = False` in the module, or see `camshaft.loops`.": (
        "loops."
    ),
    "Take it from `torchmetrics` or `torchmetrics.functional`, where `task=` says what is classified.": "metrics.",
    "It is in `camshaft.trainer.TrainingModule`, if it is still there.": "root_module.",
    "It was a part of the trainer's inside. Use the trainer's attributes and hooks.": "trainer.",
    "Use `Trainer.add_argparse_args` and `Trainer.from_argparse_args`.": "utilities.argparse. utilities.arg_parse.",
    "Runs resume exactly by themselves: `fit(ckpt_path=...)`.": "utilities.auto_restart.",
    "Run `python -m camshaft.strategies` for sharded checkpoints of ours.": "utilities.deepspeed.",
    "Pass `Trainer(accelerator=..., devices=...)`.": "utilities.device_parser.",
    "Build large modules in `configure_model`.": "utilities.meta.",
    "Checkpoints of earlier releases are read as they are.": "utilities.upgrade_checkpoint. utilities.migration.",
    "It prints a logo. Leave it out.": "cli_lightning_logo LIGHTNING_LOGO",
    "Pass `callbacks=[ThroughputMonitor()]` of `camshaft.callbacks`.": """
        @fabric.utilities.throughput.ThroughputMonitor""",
}
"""By advice, the names without a counterpart, some as a part of a module; with a dot at the end modules, and
all that is below them."""

_ADVICE = {name: advice for advice, names in _REFUSED.items() for name in names.split()}

REFUSED_NAMES: Mapping[str, str] = {name: advice for name, advice in _ADVICE.items() if name[-1] != "."}
"""By name, or by module and name, what to use."""

REFUSED_MODULES: Mapping[str, str] = {name[:-1]: advice for name, advice in _ADVICE.items() if name[-1] == "."}
"""By module, what to use in place of it and of all that is below it."""
