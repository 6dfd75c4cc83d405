// Data in the C ABI: opens files for a trainer, and loads their batches.
#include "treadle/data.h"

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/trainer.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

struct treadle_dataset : treadle::c_api::Handle<treadle_dataset> {
  treadle::train::OpenedData opened;
};

struct treadle_data_loader : treadle::c_api::Handle<treadle_data_loader> {
  treadle::train::DataLoader loader;
  std::optional<treadle::train::NamedTensors> batch = {};  // the batch as it was read: feeds and labels
  treadle::train::Feeds feeds = {};
  treadle::Tensor labels = {};
  treadle::train::Metadata position = {};  // owns the strings to which `entries` point
  std::vector<treadle_config_entry> entries = {};
};

namespace {

using namespace treadle::c_api;
using treadle::Error;
using treadle::ErrorCode;

template <typename T>
T number_in(std::string_view name, std::string_view text) {
  T number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is \"" + std::string(text) + "\", which is no number");
  return number;
}

bool flag_of(std::string_view name, std::string_view text) {
  const int flag = number_in<int>(name, text);
  if (flag != 0 && flag != 1)
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is \"" + std::string(text) + "\"; it is 0 or 1");
  return flag == 1;
}

/// Passes each option to `set`. @param set  called as set(name, value); returns false if there is no such option
template <typename Set>
void read_options(const treadle_config_entry* options, size_t num_options, const char* known, const Set& set) {
  for (size_t i = 0; i < num_options; ++i) {
    const std::string_view name = options[i].key, value = options[i].value;
    if (!set(name, value))
      throw Error(ErrorCode::not_found, "there is no option \"" + std::string(name) + "\"; all: " + std::string(known));
  }
}

treadle::train::DataFiles files_of(const treadle_config_entry* options, size_t num_options) {
  treadle::train::DataFiles files;
  read_options(options, num_options, "data, labels, features, scale", [&](std::string_view name, std::string_view value) {
    if (name == "data") {
      files.paths.emplace_back(value);
    } else if (name == "labels") {
      files.labels = value;
    } else if (name == "scale") {
      files.scale = number_in<double>(name, value);
    } else if (name == "features") {
      for (size_t at = 0; at < value.size();) {
        const size_t end = std::min(value.find(',', at), value.size());
        if (end > at) files.features.emplace_back(value.substr(at, end - at));
        at = end + 1;
      }
    } else {
      return false;
    }
    return true;
  });
  if (files.paths.empty()) throw Error(ErrorCode::invalid_argument, "the option \"data\" is missing: the files to read");
  return files;
}

treadle::train::LoaderOptions loader_options(const treadle_config_entry* options, size_t num_options) {
  treadle::train::LoaderOptions made;
  read_options(options, num_options, "batch_size, shuffle, seed, drop_last, prefetch", [&](std::string_view name, std::string_view value) {
    if (name == "batch_size")
      made.batch_size = number_in<int64_t>(name, value);
    else if (name == "shuffle")
      made.shuffle = flag_of(name, value);
    else if (name == "seed")
      made.seed = number_in<uint64_t>(name, value);
    else if (name == "drop_last")
      made.drop_last = flag_of(name, value);
    else if (name == "prefetch")
      made.prefetch = number_in<int>(name, value);
    else
      return false;
    return true;
  });
  return made;
}

void expect_batch(const treadle_data_loader& loader) {
  if (!loader.batch) throw Error(ErrorCode::invalid_argument, "the loader holds no batch: treadle_data_loader_next reads one");
}

}  // namespace

extern "C" {

treadle_status* treadle_dataset_open(const treadle_trainer* trainer, const treadle_config_entry* options, size_t num_options,
                                     const treadle_dataset* like, treadle_dataset** out) {
  return call(__func__,
              {handle(trainer, "trainer"), each_entry(options, num_options, "options"), handle_or_null(like, "like"), needed(out, "out")},
              [&] {
                const treadle::train::Trainer& opened = trainer->trainer;
                const treadle::train::LabelForm labels = treadle::train::label_form(opened.options(), opened.model());
                const std::vector<std::string> classes = like ? like->opened.classes : std::vector<std::string>();
                const std::vector<treadle::ValueInfo> inputs = treadle::train::fed_inputs(opened.options(), opened.model());
                auto data = treadle::train::open_data(files_of(options, num_options), inputs, labels, classes);
                *out = make<treadle_dataset>(std::move(data)).release();
              });
}
void treadle_dataset_release(treadle_dataset* dataset) { dispose(dataset); }
int64_t treadle_dataset_num_samples(const treadle_dataset* dataset) {
  return asked<int64_t>(dataset, 0, [](const treadle_dataset& d) { return d.opened.data->num_samples(); });
}
const char* treadle_dataset_class_name(const treadle_dataset* dataset, size_t index) {
  return asked<const char*>(dataset, nullptr, [&](const treadle_dataset& d) {
    return index < d.opened.classes.size() ? d.opened.classes[index].c_str() : nullptr;
  });
}
treadle_status* treadle_dataset_split(const treadle_dataset* dataset, double fraction, uint64_t seed, treadle_dataset** training,
                                      treadle_dataset** validation) {
  return call(__func__, {handle(dataset, "dataset"), needed(training, "training"), needed(validation, "validation")}, [&] {
    const treadle::train::OpenedData& opened = dataset->opened;
    treadle::train::SplitData parts = treadle::train::split(opened.data, fraction, seed);
    auto first = make<treadle_dataset>(treadle::train::OpenedData{std::move(parts.training), opened.classes});
    auto second = make<treadle_dataset>(treadle::train::OpenedData{std::move(parts.validation), opened.classes});
    *training = first.release();
    *validation = second.release();
  });
}

treadle_status* treadle_data_loader_create(const treadle_dataset* dataset, const treadle_config_entry* options, size_t num_options,
                                           treadle_data_loader** out) {
  return call(__func__, {handle(dataset, "dataset"), each_entry(options, num_options, "options"), needed(out, "out")}, [&] {
    treadle::train::DataLoader loader(dataset->opened.data, loader_options(options, num_options));
    *out = make<treadle_data_loader>(std::move(loader)).release();
  });
}
void treadle_data_loader_release(treadle_data_loader* loader) { dispose(loader); }

treadle_status* treadle_data_loader_next(treadle_data_loader* loader, int* has_batch) {
  if (has_batch) *has_batch = 0;
  return call(__func__, {handle(loader, "loader"), needed(has_batch, "has_batch")}, [&] {
    loader->batch.reset(), loader->feeds.clear(), loader->labels = {};
    loader->batch = loader->loader.next();
    if (!loader->batch) return;
    std::tie(loader->feeds, loader->labels) = treadle::train::feeds_and_labels(*loader->batch);
    *has_batch = 1;
  });
}
int64_t treadle_data_loader_batch_samples(const treadle_data_loader* loader) {
  return asked<int64_t>(
      loader, 0, [](const treadle_data_loader& l) { return l.batch && !l.batch->empty() ? l.batch->begin()->second.shape()[0] : 0; });
}
treadle_status* treadle_data_loader_value(const treadle_data_loader* loader, const char* name, treadle_value** out) {
  return call(__func__, {handle(loader, "loader"), needed(out, "out")}, [&] {
    expect_batch(*loader);
    const auto found = loader->batch->find(name ? name : treadle::train::kBatchLabels);
    if (found == loader->batch->end())
      throw Error(ErrorCode::not_found, name ? "the batch has no input \"" + std::string(name) + "\"" : "the batch has no labels");
    *out = make<treadle_value>(found->second).release();
  });
}
int64_t treadle_data_loader_batches_per_epoch(const treadle_data_loader* loader) {
  return asked<int64_t>(loader, 0, [](const treadle_data_loader& l) { return l.loader.batches_per_epoch(); });
}
int64_t treadle_data_loader_epoch(const treadle_data_loader* loader) {
  return asked<int64_t>(loader, 0, [](const treadle_data_loader& l) { return l.loader.position().epoch; });
}

treadle_status* treadle_data_loader_position(treadle_data_loader* loader, const treadle_config_entry** metadata, size_t* num_entries) {
  return call(__func__, {handle(loader, "loader"), needed(metadata, "metadata"), needed(num_entries, "num_entries")}, [&] {
    loader->position = loader->loader.to_metadata();
    loader->entries.clear();
    for (const auto& [key, value] : loader->position) loader->entries.push_back({key.c_str(), value.c_str()});
    *metadata = loader->entries.data(), *num_entries = loader->entries.size();
  });
}
treadle_status* treadle_data_loader_resume(treadle_data_loader* loader, const treadle_trainer* trainer) {
  return call(__func__, {handle(loader, "loader"), handle(trainer, "trainer")}, [&] {
    loader->loader.resume(trainer->metadata);
    loader->batch.reset(), loader->feeds.clear(), loader->labels = {};
  });
}

treadle_status* treadle_trainer_step_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                           const treadle_data_loader* loader, double* loss) {
  return call(__func__, {handle(trainer, "trainer"), handle_or_null(run_options, "run_options"), handle(loader, "loader")}, [&] {
    expect_batch(*loader);
    const double value = trainer->trainer.step(loader->feeds, loader->labels, options_of(run_options));
    if (loss) *loss = value;
  });
}
treadle_status* treadle_trainer_evaluate_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                               const treadle_data_loader* loader, double* loss) {
  return call(__func__, {handle(trainer, "trainer"), handle_or_null(run_options, "run_options"), handle(loader, "loader")}, [&] {
    expect_batch(*loader);
    const double value = trainer->trainer.evaluate(loader->feeds, loader->labels, options_of(run_options));
    if (loss) *loss = value;
  });
}

}  // extern "C"
