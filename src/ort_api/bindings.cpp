// Inputs and outputs bound ahead of the runs.
#include <cstring>

#include "ort_api/api.h"

namespace treadle::ort {

void add_bindings(OrtApi& table) {
  table.CreateIoBinding = [](OrtSession* session, OrtIoBinding** out) {
    return guarded([&] { required(out, "out") = new OrtIoBinding(required(session, "session")); });
  };
  table.ReleaseIoBinding = [](OrtIoBinding* binding) { delete binding; };
  table.BindInput = [](OrtIoBinding* binding, const char* name, const OrtValue* value) {
    return guarded([&] {
      OrtIoBinding& bound = required(binding, "binding_ptr");
      const Datum& datum = required(value, "val_ptr").datum;
      try {
        bound.binding.bind_input(chars_of(name, "name"), datum);
      } catch (const Error& error) {
        throw StatusError(ORT_FAIL, std::string("Failed to find input name in the mapping: ") + name + ": " + error.what());
      }
    });
  };
  table.BindOutput = [](OrtIoBinding* binding, const char* name, const OrtValue* value) {
    return guarded([&] {
      required(binding, "binding_ptr").binding.bind_output(chars_of(name, "name"), required(value, "val_ptr").datum.tensor());
      binding->has_memory[name] = true;
    });
  };
  table.BindOutputToDevice = [](OrtIoBinding* binding, const char* name, const OrtMemoryInfo* info) {
    return guarded([&] {
      expect_cpu(required(info, "mem_info_ptr"));
      required(binding, "binding_ptr").binding.bind_output(chars_of(name, "name"));
      binding->has_memory[name] = false;
    });
  };
  table.ClearBoundInputs = [](OrtIoBinding* binding) { binding->binding.clear_inputs(); };
  table.ClearBoundOutputs = [](OrtIoBinding* binding) {
    binding->binding.clear_outputs();
    binding->has_memory.clear();
  };
  // Nothing runs ahead: a run has ended when it returns.
  table.SynchronizeBoundInputs = table.SynchronizeBoundOutputs = [](OrtIoBinding*) -> OrtStatus* { return nullptr; };
  // All names in one block without NULs, and the length of each.
  table.GetBoundOutputNames = [](const OrtIoBinding* binding, OrtAllocator* allocator, char** buffer, size_t** lengths, size_t* count) {
    return guarded([&] {
      const std::vector<std::string> names = required(binding, "binding_ptr").binding.output_names();
      required(count, "count") = names.size();
      required(buffer, "buffer") = nullptr;
      required(lengths, "lengths") = nullptr;
      if (names.empty()) return;
      std::string all;
      for (const std::string& name : names) all += name;
      *buffer = copy_text(allocator, all);
      *lengths = static_cast<size_t*>(allocate(allocator, names.size() * sizeof(size_t)));
      for (size_t i = 0; i < names.size(); ++i) (*lengths)[i] = names[i].size();
    });
  };
  table.GetBoundOutputValues = [](const OrtIoBinding* binding, OrtAllocator* allocator, OrtValue*** values, size_t* count) {
    return guarded([&] {
      const std::vector<Datum> outputs = required(binding, "binding_ptr").binding.outputs();
      const std::vector<std::string> names = binding->binding.output_names();
      required(count, "output_count") = outputs.size();
      required(values, "output") = nullptr;
      if (outputs.empty()) return;
      auto** made = static_cast<OrtValue**>(allocate(allocator, outputs.size() * sizeof(OrtValue*)));
      for (size_t i = 0; i < outputs.size(); ++i) made[i] = new_value(outputs[i]);
      *values = made;
    });
  };
  table.RunWithBinding = [](OrtSession* session, const OrtRunOptions* options, const OrtIoBinding* binding) {
    return guarded([&] {
      const Session& running = required(session, "session").running();
      auto& bound = const_cast<OrtIoBinding&>(required(binding, "binding_ptr")).binding;
      if (bound.output_names().empty()) throw Error(ErrorCode::invalid_argument, "At least one output should be requested.");
      profiled(running, options, [&] { running.run(bound, options != nullptr ? &options->options : nullptr); });
    });
  };
}

}  // namespace treadle::ort
