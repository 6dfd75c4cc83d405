// Additional tables of functions that Treadle does not support: for execution providers of other libraries, for sharing memory with other
// devices' interfaces, and for packages with a model per device. A null table would crash clients, so each function exists and returns an
// error.
#include <array>
#include <cstdint>
#include <utility>

#include "ort_api/editor_api.h"

namespace treadle::ort {
namespace {

struct Function {
  const char* name;
  bool gives_status = true;  // false: the function returns no status; it returns 0 (null)
};

constexpr bool kNoStatus = false;

constexpr Function kEpFunctions[] = {
    {"CreateEpDevice"},
    {"ReleaseEpDevice", kNoStatus},
    {"EpGraphSupportInfo_AddNodesToFuse"},
    {"EpGraphSupportInfo_AddSingleNode"},
    {"NodeComputeContext_NodeName", kNoStatus},
    {"EpDevice_AddAllocatorInfo"},
    {"MemoryInfo_GetMemoryDevice", kNoStatus},
    {"Value_GetMemoryDevice", kNoStatus},
    {"MemoryDevice_AreEqual", kNoStatus},
    {"MemoryDevice_GetDeviceType", kNoStatus},
    {"MemoryDevice_GetMemoryType", kNoStatus},
    {"MemoryDevice_GetVendorId", kNoStatus},
    {"MemoryDevice_GetDeviceId", kNoStatus},
    {"SyncStream_GetImpl", kNoStatus},
    {"SyncStream_GetSyncId", kNoStatus},
    {"GetSyncIdForLastWaitOnSyncStream", kNoStatus},
    {"CreateHardwareDevice"},
    {"ReleaseHardwareDevice", kNoStatus},
    {"CreateKernelRegistry"},
    {"ReleaseKernelRegistry", kNoStatus},
    {"KernelRegistry_AddKernel"},
    {"CreateKernelDefBuilder"},
    {"ReleaseKernelDefBuilder", kNoStatus},
    {"KernelDefBuilder_SetOperatorType"},
    {"KernelDefBuilder_SetDomain"},
    {"KernelDefBuilder_SetSinceVersion"},
    {"KernelDefBuilder_SetExecutionProvider"},
    {"KernelDefBuilder_SetInputMemType"},
    {"KernelDefBuilder_SetOutputMemType"},
    {"KernelDefBuilder_AddTypeConstraint"},
    {"KernelDefBuilder_AddInputOutputAliases"},
    {"KernelDefBuilder_AddInputOutputMutableAliases"},
    {"KernelDefBuilder_Build"},
    {"ReleaseKernelDef", kNoStatus},
    {"KernelDef_GetOperatorType", kNoStatus},
    {"KernelDef_GetDomain", kNoStatus},
    {"KernelDef_GetSinceVersion"},
    {"KernelDef_GetExecutionProvider", kNoStatus},
    {"KernelDef_GetInputMemType"},
    {"KernelDef_GetOutputMemType"},
    {"GetTensorDataType"},
    {"EpGraphSupportInfo_LookUpKernel"},
    {"SharedPrePackedWeightCache_StoreWeightData"},
    {"KernelInfo_GetEp"},
    {"DeviceEpIncompatibilityDetails_SetDetails"},
    {"CreateIfKernel"},
    {"CreateLoopKernel"},
    {"CreateScanKernel"},
    {"ReleaseKernelImpl", kNoStatus},
    {"GetEnvConfigEntries"},
    {"GetOpSchema"},
    {"ReleaseOpSchema", kNoStatus},
    {"OpSchema_GetSinceVersion"},
    {"OpSchema_GetNumInputs"},
    {"OpSchema_GetInputName"},
    {"OpSchema_GetInputTypeConstraint"},
    {"OpSchema_GetNumOutputs"},
    {"OpSchema_GetOutputName"},
    {"OpSchema_GetOutputTypeConstraint"},
    {"OpSchema_GetTypeConstraintCount"},
    {"OpSchema_GetTypeConstraint"},
    {"OpSchemaTypeConstraint_GetTypeParamName"},
    {"OpSchemaTypeConstraint_GetAllowedTypes"},
    {"OpSchemaTypeConstraint_GetInputIndices"},
    {"OpSchemaTypeConstraint_GetOutputIndices"},
    {"CreateProfilingEvent"},
    {"ReleaseProfilingEvent", kNoStatus},
    {"ProfilingEvent_GetCategory"},
    {"ProfilingEvent_GetName"},
    {"ProfilingEvent_GetTimestampUs"},
    {"ProfilingEvent_GetDurationUs"},
    {"ProfilingEvent_GetArgValue"},
    {"ProfilingEventsContainer_AddEvents"},
    {"SessionOptionsGetWeightlessSourceModelBuffer"},
};

constexpr Function kInteropFunctions[] = {
    {"CreateExternalResourceImporterForDevice"},
    {"ReleaseExternalResourceImporter", kNoStatus},
    {"CanImportMemory"},
    {"ImportMemory"},
    {"ReleaseExternalMemoryHandle", kNoStatus},
    {"CreateTensorFromMemory"},
    {"CanImportSemaphore"},
    {"ImportSemaphore"},
    {"ReleaseExternalSemaphoreHandle", kNoStatus},
    {"WaitSemaphore"},
    {"SignalSemaphore"},
    {"InitGraphicsInteropForEpDevice"},
    {"DeinitGraphicsInteropForEpDevice"},
};

// The functions of model packages are not known, because their header was not available. All tables have extra entries at the end, for
// functions of later versions.
constexpr std::array<Function, 0> kPackageFunctions{};
constexpr size_t kUnknownEntries = 32;

/// Stands for a function with any arguments. This works with Linux's calling conventions, because the caller removes arguments, and all
/// results fit in a register.
template <const auto& functions, size_t place>
uintptr_t refuse() {
  if constexpr (place >= std::size(functions))
    return reinterpret_cast<uintptr_t>(make_status(
        ORT_NOT_IMPLEMENTED, "Treadle does not have this function, which belongs to execution providers or packages of models"));
  else if constexpr (functions[place].gives_status)
    return reinterpret_cast<uintptr_t>(make_status(ORT_NOT_IMPLEMENTED, missing_text(functions[place].name).c_str()));
  else
    return 0;
}

using Entry = uintptr_t (*)();

template <const auto& functions>
const Entry* refused_table() {
  static constexpr auto table = []<size_t... places>(std::index_sequence<places...>) {
    return std::array<Entry, sizeof...(places)>{refuse<functions, places>...};
  }(std::make_index_sequence<std::size(functions) + kUnknownEntries>());
  return table.data();
}

}  // namespace

void add_refused_tables(OrtApi& table) {
  table.GetEpApi = [] { return reinterpret_cast<const OrtEpApi*>(refused_table<kEpFunctions>()); };
  table.GetInteropApi = [] { return reinterpret_cast<const OrtInteropApi*>(refused_table<kInteropFunctions>()); };
  table.GetModelPackageApi = [] { return static_cast<const void*>(refused_table<kPackageFunctions>()); };
}

}  // namespace treadle::ort
