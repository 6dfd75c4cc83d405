// The table of the options of a run.
#include "session/options.h"

namespace treadle {
namespace {

constexpr OptionChoice kFiniteChecks[] = {{"off", static_cast<int>(FiniteCheck::off)},
                                          {"nan", static_cast<int>(FiniteCheck::nan)},
                                          {"all", static_cast<int>(FiniteCheck::nan_and_infinity)}};

// Describes the member of an option whose value is an object: only a program can set it.
TextMember<RunOptions> run_object() {
  return {[](const RunOptions&) { return std::string(); }, nullptr};
}

std::vector<Option<RunOptions>> run_rows() {
  using O = RunOptions;
  return {
      {{.name = "terminate", .type = "0 or 1", .text = "ends the runs that use these options; may be set from any thread"},
       TextMember<O>{[](const O& o) { return std::string(o.terminate ? "1" : "0"); },
                     [](O& o, const std::string& text) { o.terminate = parse_flag(text); }}},
      {{.name = "cancel_token", .type = "CancelToken", .text = "ends all runs that have it"}, run_object()},
      {{.name = "deadline_ms", .text = "milliseconds from the start of a run after which it fails; 0: none", .least = 0}, &O::deadline_ms},
      {{.name = "tag", .python = "logid", .text = "name of the run, in lists of runs that have not ended"}, &O::tag},
      {{.name = "targets", .text = "nodes or values to compute without fetching them"}, &O::targets},
      {{.name = "thread_pool",
        .type = "ThreadPool",
        .text = "pool for these runs, which use at most as many of its threads as the session has"},
       run_object()},
      {{.name = "output_allocators",
        .type = "allocators by name",
        .text = "allocator of outputs, by name; one that is no output of the run, or is bound to memory, is an error"},
       run_object()},
      {{.name = "output_devices",
        .text =
            "where outputs are after the run, by name: a device as sessions call it; a name that is no output of the run, or is bound to "
            "memory, is an error"},
       &O::output_devices},
      {{.name = "adapters",
        .python = "add_active_adapter()",
        .type = "LoRA adapters",
        .text = "their parameters are fed besides the run's own feeds"},
       run_object()},
      {{.name = "check_finite",
        .text = "end the run at the first node with NaN, or with NaN or an infinity, among its outputs",
        .choices = kFiniteChecks},
       choice_member<&O::check_finite, O>()},
      {{.name = "dump_folder", .type = "path", .text = "folder to write inputs and outputs of nodes to, as ONNX tensors; empty: none"},
       &O::dump_folder},
      {{.name = "dump_pattern", .type = "pattern", .text = "names of nodes to dump: * and ?; one that no node matches is an error"},
       &O::dump_pattern},
      {{.name = "on_metadata", .type = "function", .text = "called with the run's metadata at the end of each run that did not fail"},
       run_object()},
      {{.name = "config",
        .python = "add_run_config_entry()",
        .type = "texts by key",
        .text = "config entries; the keys in this table set the option beside them, others are kept"},
       run_object()},
  };
}

}  // namespace

const OptionTable<RunOptions>& run_option_table() {
  static const OptionTable<RunOptions> table(run_rows());
  return table;
}

void set_option(RunOptions& options, std::string_view name, const std::string& value) { run_option_table().set(options, name, value); }

void add_config_entry(RunOptions& options, const std::string& key, const std::string& value) {
  run_option_table().add_entry(options, key, value);
}

std::string run_options_markdown() { return run_option_table().markdown(RunOptions()); }

}  // namespace treadle
