// Implements the trainers of the C ABI.
#include "c_api/trainer.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "plugin/communicator.h"
#include "treadle/error.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

struct treadle_checkpoint_folder : treadle::c_api::Handle<treadle_checkpoint_folder> {
  treadle::train::CheckpointFolder folder;
  std::string resumed = {};
};

namespace {

using namespace treadle::c_api;
using treadle::Error;
using treadle::ErrorCode;
using treadle::train::LossScale;

constexpr const char* kLabels = "the value of the labels";

treadle_trainer* handle_of(treadle::train::Trainer made) {
  auto trainer = make<treadle_trainer>(std::move(made));
  for (const auto& [name, tensor] : trainer->trainer.parameter_views()) trainer->parameter_names.push_back(name);
  return trainer.release();
}

treadle_trainer* create(const treadle_model& model, const treadle_config_entry* options, size_t num_options,
                        std::shared_ptr<treadle::Communicator> communicator) {
  treadle::train::TrainerOptions made;
  for (size_t i = 0; i < num_options; ++i) treadle::train::set_option(made, options[i].key, options[i].value);
  made.communicator = std::move(communicator);
  return handle_of(treadle::train::Trainer(model.model, made));
}

treadle::train::Metadata metadata_of(const treadle_config_entry* metadata, size_t num_entries) {
  treadle::train::Metadata entries;
  for (size_t i = 0; i < num_entries; ++i) entries.emplace_back(metadata[i].key, metadata[i].value);
  return entries;
}

treadle::train::CheckpointSettings settings_of(int own_settings) {
  return own_settings ? treadle::train::CheckpointSettings::own : treadle::train::CheckpointSettings::same;
}

treadle::SessionOptions session_options(const treadle_config_entry* options, size_t num_options) {
  constexpr std::string_view kOfSession = "session.";
  treadle::SessionOptions session;
  for (size_t i = 0; i < num_options; ++i) {
    const std::string_view name = options[i].key;
    if (!name.starts_with(kOfSession))
      throw Error(ErrorCode::invalid_argument, "the option \"" + std::string(name) +
                                                   "\": artifacts fix all options of their trainer but those of sessions (session.NAME)");
    treadle::set_option(session, name.substr(kOfSession.size()), options[i].value);
  }
  return session;
}

}  // namespace

extern "C" {

treadle_status* treadle_trainer_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                       treadle_trainer** out) {
  return call(__func__, {handle(model, "model"), each_entry(options, num_options, "options"), needed(out, "out")},
              [&] { *out = create(*model, options, num_options, nullptr); });
}
treadle_status* treadle_trainer_create_rank(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                            const treadle_communicator* communicator, treadle_trainer** out) {
  return call(
      __func__,
      {handle(model, "model"), each_entry(options, num_options, "options"), needed(communicator, "communicator"), needed(out, "out")},
      [&] { *out = create(*model, options, num_options, treadle::plugin::communicator_of(*communicator)); });
}
void treadle_trainer_release(treadle_trainer* trainer) { dispose(trainer); }

treadle_status* treadle_trainer_step(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                     const treadle_value* const* inputs, size_t num_inputs, const treadle_value* labels, double* loss) {
  return call(__func__,
              {handle(trainer, "trainer"), handle_or_null(run_options, "run_options"), feeds(input_names, inputs, num_inputs),
               handle_or_null(labels, "labels")},
              [&] {
                const auto given = to_feeds(input_names, inputs, num_inputs);
                const double value = trainer->trainer.step(given, to_tensor(labels, kLabels), options_of(run_options));
                if (loss) *loss = value;
              });
}

treadle_status* treadle_trainer_evaluate(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                         const treadle_value* const* inputs, size_t num_inputs, const treadle_value* labels, double* loss) {
  return call(__func__,
              {handle(trainer, "trainer"), handle_or_null(run_options, "run_options"), feeds(input_names, inputs, num_inputs),
               handle_or_null(labels, "labels")},
              [&] {
                const auto given = to_feeds(input_names, inputs, num_inputs);
                const double value = trainer->trainer.evaluate(given, to_tensor(labels, kLabels), options_of(run_options));
                if (loss) *loss = value;
              });
}

treadle_status* treadle_trainer_predict(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                        const treadle_value* const* inputs, size_t num_inputs, size_t num_outputs,
                                        treadle_value** outputs) {
  clear(outputs, num_outputs);
  return call(__func__,
              {handle(trainer, "trainer"), handle_or_null(run_options, "run_options"), feeds(input_names, inputs, num_inputs),
               list(outputs, num_outputs, "outputs")},
              [&] {
                if (const size_t count = trainer->trainer.output_names().size(); num_outputs != count)
                  throw Error(ErrorCode::invalid_argument,
                              "room for " + std::to_string(num_outputs) + " outputs, there are " + std::to_string(count));
                hand_out(trainer->trainer.predict(to_feeds(input_names, inputs, num_inputs), options_of(run_options)), num_outputs,
                         outputs);
              });
}

size_t treadle_trainer_num_outputs(const treadle_trainer* trainer) {
  return asked<size_t>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.output_names().size(); });
}
const char* treadle_trainer_output_name(const treadle_trainer* trainer, size_t index) {
  return asked<const char*>(trainer, nullptr, [&](const treadle_trainer& t) {
    return index < t.trainer.output_names().size() ? t.trainer.output_names()[index].c_str() : nullptr;
  });
}
uint64_t treadle_trainer_num_steps(const treadle_trainer* trainer) {
  return asked<uint64_t>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.position().num_steps; });
}
int64_t treadle_trainer_num_updates(const treadle_trainer* trainer) {
  return asked<int64_t>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.num_updates(); });
}
double treadle_trainer_loss_scale(const treadle_trainer* trainer) {
  return asked<double>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.loss_scale().value_or(LossScale()).scale; });
}
uint64_t treadle_trainer_num_skipped(const treadle_trainer* trainer) {
  return asked<uint64_t>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.loss_scale().value_or(LossScale()).num_skipped; });
}
double treadle_trainer_learning_rate(const treadle_trainer* trainer) {
  return asked<double>(trainer, 0, [](const treadle_trainer& t) { return t.trainer.learning_rate(); });
}
treadle_status* treadle_trainer_set_learning_rate(treadle_trainer* trainer, double rate) {
  return call(__func__, {handle(trainer, "trainer")}, [&] { trainer->trainer.set_learning_rate(rate); });
}

size_t treadle_trainer_num_parameters(const treadle_trainer* trainer) {
  return asked<size_t>(trainer, 0, [](const treadle_trainer& t) { return t.parameter_names.size(); });
}
const char* treadle_trainer_parameter_name(const treadle_trainer* trainer, size_t index) {
  return asked<const char*>(trainer, nullptr, [&](const treadle_trainer& t) {
    return index < t.parameter_names.size() ? t.parameter_names[index].c_str() : nullptr;
  });
}
treadle_status* treadle_trainer_parameter(const treadle_trainer* trainer, const char* name, treadle_value** out) {
  return call(__func__, {handle(trainer, "trainer"), needed(name, "name"), needed(out, "out")}, [&] {
    const treadle::train::NamedTensors parameters = trainer->trainer.parameter_views();
    const auto found = parameters.find(name);
    if (found == parameters.end()) throw Error(ErrorCode::not_found, "there is no parameter \"" + std::string(name) + "\"");
    *out = make<treadle_value>(found->second).release();
  });
}

treadle_status* treadle_trainer_save(const treadle_trainer* trainer, const char* path) {
  return call(__func__, {handle(trainer, "trainer"), needed(path, "path")}, [&] { trainer->trainer.save(path); });
}

treadle_status* treadle_trainer_save_adapters(const treadle_trainer* trainer, const char* path) {
  return call(__func__, {handle(trainer, "trainer"), needed(path, "path")}, [&] { trainer->trainer.save_adapters(path); });
}
treadle_status* treadle_trainer_load_adapters(treadle_trainer* trainer, const char* path) {
  return call(__func__, {handle(trainer, "trainer"), needed(path, "path")}, [&] { trainer->trainer.load_adapters(path); });
}
treadle_status* treadle_trainer_use_averages(treadle_trainer* trainer, int use) {
  return call(__func__, {handle(trainer, "trainer")}, [&] { trainer->trainer.use_averages(use != 0); });
}

treadle_status* treadle_trainer_save_checkpoint(const treadle_trainer* trainer, const char* path, const treadle_config_entry* metadata,
                                                size_t num_entries) {
  return call(__func__, {handle(trainer, "trainer"), needed(path, "path"), each_entry(metadata, num_entries, "metadata")},
              [&] { trainer->trainer.save_checkpoint(path, metadata_of(metadata, num_entries)); });
}

treadle_status* treadle_trainer_load_checkpoint(treadle_trainer* trainer, const char* path, int own_settings) {
  return call(__func__, {handle(trainer, "trainer"), needed(path, "path")},
              [&] { trainer->metadata = trainer->trainer.load_checkpoint(path, settings_of(own_settings)); });
}

const char* treadle_trainer_checkpoint_metadata(const treadle_trainer* trainer, const char* key) {
  return asked<const char*>(trainer, nullptr, [&](const treadle_trainer& t) -> const char* {
    for (const auto& [name, value] : t.metadata)
      if (key && name == key) return value.c_str();
    return nullptr;
  });
}

treadle_status* treadle_trainer_write_artifacts(const treadle_trainer* trainer, const char* folder) {
  return call(__func__, {handle(trainer, "trainer"), needed(folder, "folder")}, [&] { trainer->trainer.write_artifacts(folder); });
}
treadle_status* treadle_trainer_open_artifacts(const char* folder, const treadle_config_entry* options, size_t num_options,
                                               treadle_trainer** out) {
  return call(__func__, {needed(folder, "folder"), each_entry(options, num_options, "options"), needed(out, "out")},
              [&] { *out = handle_of(treadle::train::Trainer::open_artifacts(folder, session_options(options, num_options))); });
}

treadle_status* treadle_checkpoint_folder_open(const char* path, int32_t keep_last, int asynchronous, treadle_checkpoint_folder** out) {
  return call(__func__, {needed(path, "path"), needed(out, "out")}, [&] {
    const treadle::train::CheckpointFolderOptions options{.keep_last = keep_last, .asynchronous = asynchronous != 0};
    *out = make<treadle_checkpoint_folder>(treadle::train::CheckpointFolder(path, options)).release();
  });
}
void treadle_checkpoint_folder_release(treadle_checkpoint_folder* folder) { dispose(folder); }

treadle_status* treadle_checkpoint_folder_save(treadle_checkpoint_folder* folder, const treadle_trainer* trainer,
                                               const treadle_config_entry* metadata, size_t num_entries) {
  return call(__func__, {handle(folder, "folder"), handle(trainer, "trainer"), each_entry(metadata, num_entries, "metadata")},
              [&] { folder->folder.save(trainer->trainer, metadata_of(metadata, num_entries)); });
}
treadle_status* treadle_checkpoint_folder_wait(treadle_checkpoint_folder* folder) {
  return call(__func__, {handle(folder, "folder")}, [&] { folder->folder.wait(); });
}
treadle_status* treadle_checkpoint_folder_resume(treadle_checkpoint_folder* folder, treadle_trainer* trainer, int own_settings,
                                                 const char** path) {
  if (path) *path = nullptr;
  return call(__func__, {handle(folder, "folder"), handle(trainer, "trainer")}, [&] {
    auto resumed = folder->folder.resume(trainer->trainer, settings_of(own_settings));
    if (!resumed) return;
    trainer->metadata = std::move(resumed->metadata);
    folder->resumed = std::move(resumed->path);
    if (path) *path = folder->resumed.c_str();
  });
}

}  // extern "C"
