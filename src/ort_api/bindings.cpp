// Binds inputs and outputs of sessions to tensors before runs (OrtIoBinding).
#include <cstring>

#include "ort_api/api.h"

namespace treadle::ort {

namespace {

void run_bound(const Session& session, OrtIoBinding& to, IoBinding& binding, const RunOptions* options) {
  session.run(binding, options);
  const std::vector<std::string> names = binding.output_names();
  const std::vector<Datum> values = binding.outputs();
  for (size_t i = 0; i < names.size(); ++i) to.outputs.insert_or_assign(names[i], values[i]);
}

void add_bound_outputs(OrtApi& table) {
  // Returns all names in one block of memory, without NULs between them, and the length of each name.
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
      const std::vector<std::string> names = required(binding, "binding_ptr").binding.output_names();
      required(count, "output_count") = names.size();
      required(values, "output") = nullptr;
      if (names.empty()) return;
      auto** made = static_cast<OrtValue**>(allocate(allocator, names.size() * sizeof(OrtValue*)));
      for (size_t i = 0; i < names.size(); ++i) made[i] = new_value(binding->outputs.at(names[i]));
      *values = made;
    });
  };
}

}  // namespace

void add_bindings(OrtApi& table) {
  add_bound_outputs(table);
  table.CreateIoBinding = [](OrtSession* session, OrtIoBinding** out) {
    return guarded([&] { required(out, "out") = new OrtIoBinding(required(session, "session")); });
  };
  table.ReleaseIoBinding = [](OrtIoBinding* binding) { delete binding; };
  table.BindInput = [](OrtIoBinding* binding, const char* name, const OrtValue* value) {
    return guarded([&] {
      OrtIoBinding& bound = required(binding, "binding_ptr");
      const Datum& datum = required(value, "val_ptr").datum;
      chars_of(name, "name");
      try {
        bound.binding.bind_input(name, datum);
        bound.inputs.insert_or_assign(name, datum);
      } catch (const Error& error) {
        throw StatusError(ORT_FAIL, std::string("Failed to find input name in the mapping: ") + name + ": " + error.what());
      }
    });
  };
  table.BindOutput = [](OrtIoBinding* binding, const char* name, const OrtValue* value) {
    return guarded([&] {
      const Tensor& tensor = required(value, "val_ptr").datum.tensor();
      required(binding, "binding_ptr").binding.bind_output(chars_of(name, "name"), tensor);
      binding->outputs.insert_or_assign(name, tensor);
    });
  };
  table.BindOutputToDevice = [](OrtIoBinding* binding, const char* name, const OrtMemoryInfo* info) {
    return guarded([&] {
      expect_cpu(required(info, "mem_info_ptr"));
      required(binding, "binding_ptr").binding.bind_output(chars_of(name, "name"));
      binding->outputs.insert_or_assign(name, Datum());
    });
  };
  table.ClearBoundInputs = [](OrtIoBinding* binding) {
    binding->binding.clear_inputs();
    binding->inputs.clear();
  };
  table.ClearBoundOutputs = [](OrtIoBinding* binding) {
    binding->binding.clear_outputs();
    binding->outputs.clear();
  };
  // Does nothing: runs are synchronous, so there is nothing to wait for.
  table.SynchronizeBoundInputs = table.SynchronizeBoundOutputs = [](OrtIoBinding*) -> OrtStatus* { return nullptr; };
  table.RunWithBinding = [](OrtSession* session, const OrtRunOptions* options, const OrtIoBinding* binding) {
    return guarded([&] {
      const Session& running = required(session, "session").running();
      auto& given = const_cast<OrtIoBinding&>(required(binding, "binding_ptr"));
      profiled(running, options, [&] {
        if (given.outputs.empty()) throw Error(ErrorCode::invalid_argument, "At least one output should be requested.");
        if (options != nullptr) check_severity(options->log_severity_level, "run_log_severity_level");
        const RunOptions* with = options != nullptr ? &options->options : nullptr;
        if (given.of == &running) return run_bound(running, given, given.binding, with);
        IoBinding of_this(running);  // clients may bind values for one session and run another one
        for (const auto& [name, value] : given.inputs) of_this.bind_input(name, value);
        for (const auto& [name, value] : given.outputs)
          of_this.bind_output(name, value.is_tensor() ? std::optional(value.tensor()) : std::nullopt);
        run_bound(running, given, of_this, with);
      });
    });
  };
}

}  // namespace treadle::ort
