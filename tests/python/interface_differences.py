"""Known differences between libonnxruntime.so.1's answers and onnxruntime's own, with the reasons; and calls that are never made."""

from __future__ import annotations

import json
import re
from typing import Any

# Functions that are never called, each with the reason.
LEFT_OUT = {
    r"^AllocatorFree$": "what is freed was read before",
    r"^(CreateStatus|GetErrorCode|GetErrorMessage|ReleaseStatus)$": "every call that fails makes, reads and releases one",
    r"^ReleaseKernelInfo$|^ReleaseOp$": "as long as the operator",
    r"^GetBuildInfoString$": "a text of each library's own",
    r"^Get(Api|TrainingApi|ModelEditorApi|CompileApi|EpApi|InteropApi|ModelPackageApi|ExperimentalFunction|ExecutionProviderApi)$": "give tables (test_onnxruntime_c.py)",
    r"^(Create|Update|Get|Release)(TensorRT|CUDA|CANN|Dnnl|ROCM)ProviderOptions|GpuDeviceId|GetGPUComputeStream|KernelContext_GetResource|SyncStream": "of other devices",
    r"^SessionOptionsAppendExecutionProvider_(?!V2)": "of other devices: structs that a client fills in",
    r"OpaqueValue": "values of no type that an operator takes",
    r"^SetPerSessionThreadPoolCallbacks$": "onnxruntime's own packages have them not",
    r"^ReleaseAvailableProviders$|^GetAvailableProviders$": "the list of onnxruntime's package has more (docs/python.md)",
    r"^GetEpApi|EpContextData|Weightless": "of execution providers in other libraries",
}

# Calls that kill onnxruntime's process or make it read invalid memory: a function, a pattern of the arguments, and the reason.
DIES: list[tuple[str, str, str]] = [
    (r"editor (CreateSessionFromModel|ApplyModel)|SetInputModel$", r"OrtModel\[1\]", "a model without a graph"),
    (r"^CreateAllocator$", r"OrtSession\[1\]", "a session under edit"),
    (r"^CreateTensorWithData", r', 8, ("&out"|null)\]$', "texts around memory that has none"),
    (r"^UnregisterExecutionProviderLibrary$", r'"CPUExecutionProvider"', "the provider is gone for the sessions behind it"),
]

_READERS = "onnxruntime reads only graphs that it gives to execution providers"
_FETCHED = "any value of the main graph can be fed and fetched"
_OTHER_MEMORY = "the CPU is the only device"
_EDITED = "what is wrong with a model is told when its editing ends; external data has to be there before"
_NULL = "a null is a wrong argument, where onnxruntime makes a text of it or takes it for nothing"

# Known differences: a function, its arguments, both answers (as patterns of their JSON, Treadle's and onnxruntime's), and the reason.
DIFFERENCES: list[tuple[str, str, str, str]] = [
    (r"", r"null", r'^\[\["failed", 2, .*\["(failed", 6|ok")', _NULL),
    (r"", r"null", r'^\[\["failed", 2, "[^"]* is null', _NULL),
    (r"", r"null", r'"basic_string: construction from null', _NULL),
    (r"^EnableOrtCustomOps$|^EpDevice_GetNumbers$", r"null", r"", _NULL),
    (r"^RunAsync$", r"", r'\["failed", 2, "intra op thread pool must have', "a session of one thread runs asynchronously, too"),
    # Differences of bindings and runs.
    (r"^(Run|RunAsync|RunWithBinding)$", r"", r'^\[\["ok".*\["failed", 2, "Invalid output name', _FETCHED),
    (r"^RunAsync$", r"", r'^\[\["ok", \[true, \[\["ok".*\["ok", \[true, \[\[2, 0\]', _FETCHED),
    (r"^Run", r"", r'^\[\["ok".*\["failed", 2, "(Unexpected input|Invalid input|Got invalid dim|Invalid rank|input with name)', "inputs that the wanted outputs do not need are not looked at"),
    (r"^Run", r"", r'^\[\["ok".*"calls of a kernel"', "the kernels of what the wanted outputs do not need do not run"),
    (r"^RunAsync$", r"", r'^\[\["ok", \[true, \[\[\d.*\["ok", \[true, \[\[\d', "inputs are checked before outputs"),
    (r"^BindInput$", r"", r'^\[\["ok".*\["failed", 1, "Failed to find input name', _FETCHED),
    (r"^BindInput$", r"", r'^\[\["failed", 1, "Failed to find input name.*\["ok"', "a value that is no tensor is bound there to any name, and refused by the run"),
    (r"^BindOutput$", r"", r'^\[\["failed", 2, "expected a tensor.*\["ok"', "outputs go to tensors"),
    (r"^(BindOutputToDevice|CreateTensorWithData)", r"", r'^\[\["failed", 2, "the memory .* is of another device', _OTHER_MEMORY),
    (r"^(Run|RunAsync|RunWithBinding)$", r"", r'^\[\["failed", 1, "Missing Input.*\["failed", 2, ', "inputs are checked before outputs"),
    (r"^(Run|RunAsync)$", r"", r'^\[\["ok".*\[5, 1, ', "an output that is declared dense is dense, though its Constant is sparse"),
    (r"^Run$", r"", r'^\[\["failed", 1, "Exiting due to terminate', "whether a run is to end is asked before its inputs are checked"),
    (r"^Run$", r"OrtValue\[\d+\][^]]*\]\]$", r'^\[\["ok".*\["ok"', "a sequence that is given for an output is written to, and an output that is wanted twice in both places"),
    (r"^Run$", r"", r'^\[\["ok".*\["ok", \[\[0, 0\]\]\]', "an output that holds nothing is filled"),
    (r"Create\w*Session", r"", r'^\[\["failed", 3, "there is no pass', "names of optimizers that exist nowhere are refused"),
    (r"^GetTensorMemoryInfo$", r"", r'^\[\["ok".*Unsupported type proto', "an output that is declared dense is dense, though its Constant is sparse"),
    # Differences of values.
    (r"^AddInitializer$|^AddExternalInitializers$", r"", r'^\[\["ok".*must be owned by the user', "values may be strings, and in the library's memory"),
    (r"^Add(External)?Initializers?$", r"", r'^\[\["failed", 2, "An OrtValue for this name has already.*\["ok"', "values in the library's memory were added before"),
    (r"Create\w*Session", r"", r'^\[\["failed", 1, "Trying to replace non-external.*\["ok"', "values in the library's memory were added before"),
    (r"^CopyTensors$", r"", r'^\[\["ok".*All OrtValue instances must have', "each value is copied from where it is to where the other one is"),
    (r"^CopyTensors$", r"", r'\["failed", 9, "Data transfer implementation', "onnxruntime's package copies nothing from the CPU to the CPU"),
    (r"^Create(Sparse)?Tensor", r", 1[45], ", r'\["failed", 9, "(sparse )?tensor type 1[45] is not', "complex elements are taken"),
    (r"^CreateSparse", r"", r'^\[\["failed", \d+, "(Integer overflow|a negative extent)', "extents that make no shape are refused at once"),
    (r"^(Use|Fill)\w*(Indices|Sparse)", r"", r'"(Not expecting an al|[^"]*UseCooIndices Not|[^"]*Use\w+Indices)', "indices can be used for values in the library's memory"),
    (r"^UseCooIndices$", r"\[\], 0\]$", r'"COO indices must be provided', "no indices belong to no values"),
    (r"^FillSparse", r"", r"(GetDataTransfer|should be called only|Make\w+Data|negative extent)", "values around memory can be filled"),
    (r"CompileModel$", r"", r'"(a file of initializers goes with|initializers go to a file|external_data_file is|open file)', "where the model and its initializers go is checked first"),
    (r"CreateSession", r"", r'^\[\["failed", 1, "cannot create', "a model that cannot be written fails"),
    (r"CompileModel$", r"", r'^\[\["failed", 11, "no space.*model_path.empty', "external data of a model in memory lies in the current folder"),
    (r"CompileModel$", r"", r"Unable to compile any nodes", "what is asked of the compiler is checked before the model"),
    (r"CompileModel$", r"", r"calls of a kernel", "a model that is compiled is made ready to run; custom operators belong to the process"),
    (r"^Run", r"", r"a parameter of an adapter, is fed already", "a value is fed once"),
    (r"^FillSparse", r"", r"to copy sparse data with from the memory", "what is wrong is looked for in another order"),
    (r"^GetTensorSizeInBytes$", r"", r'^\[\["ok".*is expected to contain a tensor', "the value of a Constant with sparse_value is dense, as it is declared"),
    (r"^SessionGetEpDeviceForOutputs$", r"", r"Failed to find output name in the mapping", "an output that is a constant is on the CPU, too"),
    (r"^GetTensorShapeElementCount$", r"", r"SafeIntOnOverflow", "an extent without a value counts for what SetDimensions has said"),
    (r"^CreateTensorWithDataAnd", r"", r"strings cannot be made around memory", "texts around memory that has none"),
    # Differences of models.
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 1, ".*is never made.*\["ok"', "a graph without nodes makes no outputs"),
    (r"^CreateSession", r"", r'^\[\["failed", 12, .*ValidateOpsetForDomain', "what is wrong is looked for in another order"),
    (r"^CreateSession|CreateModelEditorSession|CompileModel", r"", r'(no opset.onnx|onnxruntime::Model::Model)', "a model without nodes needs no opset"),
    (r"^CreateSession|CreateModelEditorSession", r'"no opset', r'^\[\["ok"', "a model without nodes needs no opset"),
    (r"^CreateSession", r"", r'^\[\["ok".*\["ok".*\[.-1\], \[.\w+.\]', "a symbol that has been given an extent is shown as it"),
    (r"^CreateSession", r"", r'^\[\["ok".*\["ok".*\[-1, 3\], \[\'\', \'\'\]', "a symbol that has been given a negative extent keeps its name"),
    (r"^GetCompatibilityInfo", r'"(nothing|folder|garbage|cut)', r"", "what is no model has no metadata"),
    (r"^GetCompatibilityInfo", r"", r"IR version", "a model of an IR version that is not known is refused"),
    (r"CreateSession|CompileModel|Finalize", r"", r'"Could not find an implementation for Relu\(1\)', "opsets below 7 are run"),
    (r"^CreateSession|CreateModelEditorSession", r'"declared', r'^\[\["ok".*\["ok"', "an extent that contradicts is shown as it is declared"),
    (r"^CreateSession|CompileModel|FinalizeModelEditorSession", r"", r'^\[\["ok".*model_path.empty', "external data of a model in memory lies in the current folder, there at some levels of optimisation alone"),
    (r"^CreateSession|CompileModel", r"", r'^\[\["failed", 1, ".*(MatMul|Add) node.*\["ok"', "values that replace initializers are held against the nodes that read them"),
    (r"^editor CreateModelEditorSession", r"", r"", _EDITED),
    (r"^editor SessionGetOpsetForDomain$", r'"ai.onnx"', r'^\[\["ok", ', 'the domain "ai.onnx" is the domain ""'),
    (r"^editor SessionGetOpsetForDomain$", r"", r'\["ok", ', "domains that a model does not import have no opset"),
    (r"^editor CreateValueInfo$", r"", r"Only tensor types are supported", "values of every type can be declared"),
    (r"CreateSession", r"", r'^\[\["ok".*Failed to find existing initializer', "a value for an initializer that is not there is left out"),
    (r"^ModelMetadataGetGraphName$", r"", r'^\[\["ok", "graph"\], \["ok", ""\]', "a graph that was put together has a name, as ONNX wants it"),
    (r"^(GetSessionOptionsConfigEntries|GetSessionConfigEntry|HasSessionConfigEntry)$", r"", r'ep\.\w+executionprovider\.', "a provider that is refused leaves no options behind"),
    (r"^SessionGetModelMetadata$", r"", r'"graph", "", "", "".*\["", "", "", "", ""', "a graph that was put together has a name, as ONNX wants it"),
    (r"^Run", r"", r'^\[\["failed", 1, "Missing Input: w.*\["ok"', "a custom operator's inputs are fed, whether its kernel reads them or not"),
    (r"^editor CreateSessionFromModel$", r"", r'ValidateOpsetForDomain', "what is wrong is looked for in another order"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 2, "the model has no graph.*custom_join_thread_fn was false', "what is wrong is looked for in another order"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 10, .*No opset import.*not a registered function', "what is wrong is looked for in another order"),
    (r"^Graph_GetModelMetadata$", r"", r'^\[\["ok".*\["ok"', _READERS),
    (r"^(ValueInfo|Graph|Node)_", r"", r'(does not support|doesn\'t support|ModelEditor|in no graph yet|in no model yet)', _READERS),
    (r"^CreateSession", r"", r'^\[\["failed", \d+, "(no choice|the function that selects|Failed to find existing|reading|(Load model from|No graph was) .*ConstructorCommon)', "what is wrong is looked for in another order"),
    (r"^CreateSession", r"", r"session_env.EnvCreatedWith", "threads are made with the environment, of which onnxruntime has one"),
    (r"^Run", r"", r'^\[\["ok".*OutputMLValue', "a kernel may ask for an output again"),
    (r"^CreateSession", r'"probe', r"is not a registered function/op", "custom operators belong to the process"),
    (r"^CreateSession", r'"probe', r'^\[\["ok".*\["ok"', "extents that a custom operator has told stay"),
    (r"^editor ApplyModel", r"", r"This is an invalid model", _EDITED),
    (r"CreateSession", r"", r'^\[\["failed", \d+, .*\["failed", 1, "Domain already set in registry', "what is wrong is looked for in another order"),
    (r"CreateSession", r"", r'^\[\["failed", 3, "Load model.*Domain already set', "what is wrong is looked for in another order"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", \d+, ".*two nodes with same node name', "what is wrong is looked for in another order"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 1, "Domain already set in registry', "a domain that options have twice is refused for every model"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 1, "the model needs opset.*No Op registered', "session.allow_released_opsets_only lets in no opset that is not known"),
    (r"CreateSession", r"", r'^\[\["ok".*Error creating execution provider', "a device that is chosen twice is chosen"),
    (r"^editor Finalize", r"", r'^\[\["failed", 1, "(When the session is not configured|custom join thread).*\["ok"', "of threads is asked what the options say that editing ends with"),
    (r"CreateSession", r"", r'^\[\["ok".*SaveInitializedTensors', "a graph of nothing makes a session"),
    (r"^editor Finalize", r"PrepackedWeights", r'^\[\["ok".*already has a PrePackedWeights', "a session that is complete is left as it is"),
    (r"", r"", r'^\[\[("[^"]*", )*"optimized[^"]*"\], \[\]', "options that editing ends with say where the optimised model goes"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 2, "Invalid model. Node input.*Duplicate definition of name', "what is wrong is looked for in another order"),
    (r"^editor CreateSessionFromModel$", r"", r'^\[\["failed", 10, "This is an invalid model. the model needs opset.*SaveInitializedTensors', "what is wrong is looked for in another order"),
    (r"^CreateSession", r"", r'^\[\["failed", 12, .*ConstructorCommon', "what is wrong is looked for in another order"),
    (r"^CreateSession$", r"folder", r'^\[\["failed", 1, "Invalid session_log.*is a directory', "what is wrong is looked for in another order"),
    (r"^Run", r"", r'^\[\["failed", 2, "Probe node.*inferred was.*OutputMLValue', "extents that contradict those that were inferred are a wrong argument"),
    (r"^editor Finalize", r"", r"canceled due to user request", "whether loading is cancelled is asked of the options that editing ends with"),
    (r"^GetBoundOutputNames$", r"", r"string buffer allocation failed", "a name of no letters takes no memory"),
    (r"^BindInput$", r"", r"mapped_feed_names_.size", "a binding stays usable after an input that was refused"),
    (r"^Run", r"", r'(Missing Input|Exiting due|has a value|is fed already|Invalid ).*calls of a kernel', "inputs are checked before a kernel runs"),
    (r"^Run", r"", r'calls of a kernel.*(Invalid|Unexpected|Missing|Got)', "kernels are made before the inputs of a run are checked"),
    (r"^RunAsync$", r"OrtRunOptions", r'^\[\["ok", \[true, \[\[.*\["ok", \[true, \[\["ok"', "adapters are active in asynchronous runs, too"),
    (r"^Run", r"OrtSession\[\d\]", r'Session not initialized', "what is wrong is looked for in another order"),
    (r"", r"", r'^\[\[("[^"]*", )*("[^"]*")?\], \[("[^"]*", )*"[^"]*\.json', "a run that does not begin has no profile"),
    (r"^Run$", r"", r'^\[\["failed", 1, "Invalid run_log', "what is wrong is looked for in another order"),
    # Differences of devices, environments and options.
    (r"^EpDevice_EpVendor$", r"", r"", "the provider is Treadle's"),
    (r"HardwareDevices$", r"", r'\["ok"', "onnxruntime lists devices that the machine has beside the CPU"),
    (r"", r"", r"[Nn]umber of affinities", "a pool without a number has as many threads as the process may use, there as many as processors"),
    (r"^CreateEnv|^the environment$", r"", r'^\[\["failed", 1, .*\["ok"', "threads are made with the environment, of which onnxruntime has one"),
    (r"^SessionOptionsAppendExecutionProvider$", r'"AZURE"', r"", "providers that call others by the network are not there"),
    (r"^RegisterExecutionProviderLibrary$", r"", r'^\[\["failed", 9', "devices and backends are plugins of Treadle"),
    (r"^(CreateAllocator|KernelContext_GetScratchBuffer)$", r"", r'^\[\["ok".*No requested allocator', "memory of the CPU is memory of the CPU"),
    (r"^GetTensor(Mutable)?Data$|^GetSparseTensorValues$", r"", r'^\[\["ok", "memory"\], \["ok", null', "a tensor without elements has an address"),
    (r"^GetSparseTensorIndices$", r"", r'^\[\["ok", 0, "memory"\], \["ok", 0, null', "a tensor without elements has an address"),
    (r"^GetSharedAllocator$", r"", r'^\[\["ok".*\["ok", null', "memory of the CPU is memory of the CPU"),
    (r"", r"", r'^\[\[[^\]]*\], \[[^\]]*compiled\.bin|^\[\["compiled\.bin"', "a file of initializers is written where some go to it, and together with its model"),
    (r"^AllocatorGetStats$", r"", r'^\[\["ok".*\["ok"', "an allocator counts what it is asked for itself"),
    (r"^UnregisterAllocator$", r"", r'"ok"', "memory of the CPU is memory of the CPU"),
    (r"^AddSessionConfigEntry$", r"", r'^\[\["failed", [23], .*\["ok"', "what an option cannot be is told at once"),
    (r"^CreateLoraAdapter", r"OrtAllocator", r'^\[\["ok".*LoraAdapter::', "an allocator is for other devices: onnxruntime's package has no way to copy to it"),
    (r"^CreateLoraAdapter$", r'"folder"', r"", "the code there is the system's error"),
    (r"SetEpContextBinaryInformation$", r"", r'^\[\["ok"', "a folder may be a relative path"),
    # Differences of kernels.
    (r"^KernelInfo_GetOutputTypeInfo$", r"", r'^\[\["ok".*\["ok"', "what a shape function tells holds, though the model declares otherwise"),
    (r"^KernelContext_GetOutput$", r"", r'^\[\["ok".*OutputMLValue', "a kernel may ask for an output again"),
    (r"^KernelContext_GetOutput$", r"", r'^\[\["failed", 1, "(Integer overflow|a negative extent).*OutputMLValue', "outputs are made when the kernel asks for them"),
    (r"^KernelContext_GetPreallocatedOutput$", r"", r'^\[\["ok"', "outputs are made when the kernel asks for them"),
    (r"^ReadOpAttr$", r', 1, "&data", 4,', r'^\[\["failed", 2, .*\["ok", 8\]', "onnxruntime writes the 8 bytes of an integer to room for 4"),
    (r"^ReadOpAttr$", r"", r'^\[\["failed", 2, .*\["ok", 0\]', "a list of another type is no empty list"),
    (r"^ShapeInferContext_SetOutputTypeShape$", r"null", r"Invalid shape info", _NULL),
    (r"^CreateOp$", r"", r'^\[\["failed", (2, "(a count is negative|the operator \w+ has)|9, .*(outputs named|inputs given|is missing))', "counts are checked when the operator is made"),
]


def reason_for(function: str, said: Any, ours: Any, theirs: Any) -> str | None:
    arguments, both = json.dumps(said), json.dumps([ours, theirs])
    for name, pattern, outcomes, reason in DIFFERENCES:
        if re.search(name, function) and re.search(pattern, arguments) and re.search(outcomes, both):
            return reason
    return None
