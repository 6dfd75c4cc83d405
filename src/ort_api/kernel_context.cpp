// Functions by which the kernel of a custom operator accesses its inputs, outputs and resources during a run.
#include <algorithm>

#include "ort_api/custom_operator.h"

namespace treadle::ort {

const OrtLogger& silent_logger() {
  static const OrtLogger logger;
  return logger;
}

namespace {

const OrtValue* input_at(OrtKernelContext& context, size_t index) {
  if (index >= context.inputs.size() || !context.call.node->has_input(index)) return nullptr;  // omitted
  std::unique_ptr<OrtValue>& value = context.inputs[index];
  if (!value) {
    const Datum& datum = context.call.operands().borrowed_input(static_cast<int>(index));
    value.reset(new_value(datum.is_tensor() ? Datum(datum.tensor().contiguous()) : datum));
  }
  return value.get();
}

OrtValue* output_at(OrtKernelContext& context, size_t index, const int64_t* dims, size_t rank) {
  if (index >= context.outputs.size() || !context.call.node->has_output(index)) return nullptr;
  for (size_t i = 0; i < rank; ++i)
    if ((&required(dims, "dim_values"))[i] < 0) throw StatusError(ORT_FAIL, "a negative extent of output " + std::to_string(index));
  const Shape shape = shape_from(dims, rank);
  if (context.output_dtypes[index] == DType::undefined)
    throw Error(ErrorCode::invalid_argument,
                "the dtype of output " + std::to_string(index) + " is not known: neither the operator nor the model says it");
  if (plugin::host().call_output(&context.call, index, static_cast<int>(context.output_dtypes[index]), shape.begin(), rank) == nullptr)
    throw Error(ErrorCode::resource_exhausted, plugin::take_failure());
  context.outputs[index].reset(new_value(context.call.outputs[index]));  // shares the output's memory
  return context.outputs[index].get();
}

void expect_allocator_of(const OrtMemoryInfo* info) {
  const OrtMemoryInfo& wanted = required(info, "mem_info");
  if (wanted.device != OrtMemoryInfoDeviceType_CPU || wanted.vendor_id != 0 || wanted.device_mem_type != OrtDeviceMemoryType_DEFAULT)
    throw Error(ErrorCode::invalid_argument, "No requested allocator available: of \"" + info->name + "\", the memory here is \"Cpu\"");
}

}  // namespace

void add_kernel_context(OrtApi& table) {
  table.KernelContext_GetInputCount = [](const OrtKernelContext* context, size_t* out) {
    return guarded([&] { required(out, "out") = required(context, "context").inputs.size(); });
  };
  table.KernelContext_GetOutputCount = [](const OrtKernelContext* context, size_t* out) {
    return guarded([&] { required(out, "out") = required(context, "context").outputs.size(); });
  };
  table.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index, const OrtValue** out) {
    return guarded([&] { required(out, "out") = input_at(const_cast<OrtKernelContext&>(required(context, "context")), index); });
  };
  table.KernelContext_GetOutput = [](OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** out) {
    return guarded([&] { required(out, "out") = output_at(required(context, "context"), index, dims, rank); });
  };
  table.KernelContext_GetLogger = [](const OrtKernelContext*, const OrtLogger** out) {
    return guarded([&] { required(out, "logger") = &silent_logger(); });
  };
  table.KernelContext_GetAllocator = [](const OrtKernelContext*, const OrtMemoryInfo* info, OrtAllocator** out) {
    return guarded([&] {
      expect_allocator_of(info);
      required(out, "out") = &default_allocator();
    });
  };
  table.KernelContext_GetGPUComputeStream = [](const OrtKernelContext*, void** out) {
    return guarded([&] { required(out, "out") = nullptr; });
  };
  table.KernelContext_GetSyncStream = [](const OrtKernelContext*, OrtSyncStream** out) {
    return guarded([&] { required(out, "out") = nullptr; });  // the CPU has no streams
  };
  // Returns null if the kernel has not requested the output yet, because outputs are allocated when they are requested.
  table.KernelContext_GetPreallocatedOutput = [](const OrtKernelContext* context, size_t index, OrtValue** out) {
    return guarded([&] {
      const size_t count = required(context, "context").outputs.size();
      if (index >= count) throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(count));
      required(out, "output") = context->outputs[index].get();
    });
  };
  table.KernelContext_GetScratchBuffer = [](const OrtKernelContext* context, const OrtMemoryInfo* info, size_t size, void** out) {
    return guarded([&] {
      required(out, "out") = nullptr;
      if (size == 0) return;
      expect_allocator_of(info);
      auto& scratch = const_cast<OrtKernelContext&>(required(context, "context")).scratch;
      scratch.push_back(Storage::allocate(size));
      *out = scratch.back()->data();
    });
  };
  table.KernelContext_ParallelFor = [](const OrtKernelContext* context, void (*fn)(void*, size_t), size_t total, size_t batches,
                                       void* data) {
    return guarded([&] {
      if (fn == nullptr) throw Error(ErrorCode::invalid_argument, "the function to call is null");
      struct Work {
        void (*fn)(void*, size_t);
        void* data;
      } work{fn, data};
      auto* call = &const_cast<OrtKernelContext&>(required(context, "context")).call;
      const size_t grain = batches > 0 ? (total + batches - 1) / batches : 1;  // `batches` 0: one call per task
      plugin::host().parallel_for(
          call, static_cast<int64_t>(total), static_cast<int64_t>(std::max<size_t>(grain, 1)),
          [](void* context_of_work, int64_t begin, int64_t end) {
            const auto& each = *static_cast<const Work*>(context_of_work);
            for (int64_t i = begin; i < end; ++i) each.fn(each.data, static_cast<size_t>(i));
          },
          &work);
    });
  };
}

}  // namespace treadle::ort
