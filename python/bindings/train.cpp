// Binds Trainer, checkpoints and data loaders.
#include "treadle/train.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "datum.h"
#include "numpy.h"
#include "treadle/data.h"
#include "treadle/error.h"
#include "treadle/event_file.h"
#include "treadle/sharing.h"

namespace treadle::python {
namespace {

using train::Feeds;
using train::NamedTensors;
using train::Trainer;

// Makes feeds that use the memory of the arrays until `scope` ends.
Feeds feeds_from_dict(const nb::dict& feeds, BufferScope& scope) {
  Feeds made;
  for (auto [name, value] : feeds) made.emplace(string_from_python(name), datum_from_python(value, "", &scope));
  return made;
}

nb::dict to_dict(const NamedTensors& tensors) {
  nb::dict dict;
  for (const auto& [name, tensor] : tensors) dict[string_to_python(name)] = array_from_tensor(tensor);
  return dict;
}

nb::bytes to_bytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

template <typename Fn>
auto with_batch(const nb::dict& feeds, nb::handle labels, Fn&& fn) {
  BufferScope scope;
  const Feeds made = feeds_from_dict(feeds, scope);
  const Tensor targets = labels.is_none() ? Tensor() : tensor_from_array(labels, &scope);
  nb::gil_scoped_release release;
  return fn(made, targets);
}

nb::list to_list(std::vector<Datum> outputs) {
  nb::list list;
  for (Datum& output : outputs) list.append(output_to_python(std::move(output)));
  return list;
}

nb::tuple evaluate_with_outputs(Trainer& trainer, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
  Trainer::Evaluated made = with_batch(
      feeds, labels, [&](const Feeds& batch, const Tensor& targets) { return trainer.evaluate_with_outputs(batch, targets, options); });
  return nb::make_tuple(made.loss, to_list(std::move(made.outputs)));
}

nb::list predict(Trainer& trainer, const nb::dict& feeds, const PyRunOptions* options) {
  std::vector<Datum> outputs;
  {
    BufferScope scope;
    const Feeds made = feeds_from_dict(feeds, scope);
    nb::gil_scoped_release release;
    outputs = trainer.predict(made, options);
  }
  return to_list(std::move(outputs));
}

train::CheckpointSettings checkpoint_settings(bool own) { return own ? train::CheckpointSettings::own : train::CheckpointSettings::same; }

// Registers DataLoader and read_csv(). A loader copies batches, so that its prefetching thread does not need the GIL.
void register_loader(nb::module_& module) {
  using namespace nb::literals;
  using train::DataLoader;
  nb::class_<DataLoader>(module, "DataLoader")
      .def(
          "__init__",
          [](DataLoader* self, const nb::dict& arrays, int64_t batch_size, bool shuffle, uint64_t seed, bool drop_last, int prefetch,
             int rank, int num_ranks) {
            NamedTensors tensors;
            for (auto [name, array] : arrays) tensors.emplace(string_from_python(name), tensor_from_array(array));
            new (self) DataLoader(train::dataset_of(std::move(tensors)), {.batch_size = batch_size,
                                                                          .shuffle = shuffle,
                                                                          .seed = seed,
                                                                          .drop_last = drop_last,
                                                                          .prefetch = prefetch,
                                                                          .rank = rank,
                                                                          .num_ranks = num_ranks});
          },
          "arrays"_a, "batch_size"_a, "shuffle"_a, "seed"_a, "drop_last"_a, "prefetch"_a, "rank"_a, "num_ranks"_a)
      .def("next",
           [](DataLoader& self) -> std::optional<nb::dict> {
             std::optional<NamedTensors> batch;
             {
               nb::gil_scoped_release release;
               batch = self.next();
             }
             if (!batch) return std::nullopt;
             return to_dict(*batch);
           })
      .def_prop_ro("batches_per_epoch", &DataLoader::batches_per_epoch)
      .def_prop_ro("position", [](const DataLoader& self) { return std::pair(self.position().epoch, self.position().batch); })
      .def("to_metadata", &DataLoader::to_metadata)
      .def("resume", &DataLoader::resume, "metadata"_a);
  module.def(
      "read_csv",
      [](const std::string& path, const std::string& label, std::vector<std::string> features, const std::string& separator,
         const std::vector<std::string>& classes) {
        if (separator.size() != 1)
          throw Error(ErrorCode::invalid_argument, "the separator is \"" + separator + "\"; one character is expected");
        train::CsvTable table;
        {
          nb::gil_scoped_release release;
          table = train::read_csv(path, {.label = label, .features = std::move(features), .separator = separator[0]}, classes);
        }
        return nb::make_tuple(array_from_tensor(table.features), table.labels.defined() ? array_from_tensor(table.labels) : nb::none(),
                              table.feature_names, table.classes);
      },
      "path"_a, "label"_a, "features"_a, "separator"_a, "classes"_a);
}

// Makes a trainer. The arguments for job, limits and threads override the options in `session`.
void make_trainer(Trainer* self, const Model& model, const train::TrainerOptions& given, int num_threads, size_t memory_limit_bytes,
                  const std::string& spill_folder, std::shared_ptr<Job> job, const PySessionOptions* session) {
  train::TrainerOptions options = given;
  if (session) options.session = with_warnings(*session);
  if (given.session.memory_fraction != 0) options.session.memory_fraction = given.session.memory_fraction;
  if (given.session.recompute_fraction >= 0) options.session.recompute_fraction = given.session.recompute_fraction;
  if (num_threads > 0) options.session.intra_op_num_threads = num_threads;
  if (memory_limit_bytes > 0) options.session.memory_limit_bytes = memory_limit_bytes;
  if (!spill_folder.empty()) options.session.spill_folder = spill_folder;
  if (job) options.session.job = std::move(job);
  nb::gil_scoped_release release;  // other ranks, for which the trainer waits, may be threads of this process
  new (self) Trainer(model, options);
}

void register_making(nb::class_<Trainer>& trainer) {
  using namespace nb::literals;
  trainer
      .def("__init__", &make_trainer, "model"_a, "options"_a, "num_threads"_a, "memory_limit_bytes"_a, "spill_folder"_a, "job"_a.none(),
           "session"_a.none())
      .def_static(
          "open_artifacts",
          [](const std::string& folder, const PySessionOptions* session) {
            const SessionOptions options = session ? with_warnings(*session) : SessionOptions();
            nb::gil_scoped_release release;
            return Trainer::open_artifacts(folder, options);
          },
          "folder"_a, "session"_a.none())
      .def("write_artifacts", &Trainer::write_artifacts, "folder"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("model", &Trainer::model)
      .def("close", &Trainer::close, "timeout_ms"_a = -1, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("closed", &Trainer::closed)
      .def("memory_statistics", [](const Trainer& self) { return memory_dict(self.memory_statistics()); })
      .def("set_memory_limit", &Trainer::set_memory_limit, "limit_bytes"_a);
}

void register_steps(nb::class_<Trainer>& trainer) {
  using namespace nb::literals;
  trainer
      .def(
          "step",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return with_batch(feeds, labels, [&](const Feeds& made, const Tensor& targets) { return self.step(made, targets, options); });
          },
          "feeds"_a, "labels"_a.none(), "options"_a.none() = nb::none())
      .def(
          "evaluate",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return with_batch(feeds, labels,
                              [&](const Feeds& made, const Tensor& targets) { return self.evaluate(made, targets, options); });
          },
          "feeds"_a, "labels"_a.none(), "options"_a.none() = nb::none())
      .def(
          "gradients",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return to_dict(with_batch(feeds, labels,
                                      [&](const Feeds& made, const Tensor& targets) { return self.gradients(made, targets, options); }));
          },
          "feeds"_a, "labels"_a.none(), "options"_a.none() = nb::none())
      .def("evaluate_with_outputs", &evaluate_with_outputs, "feeds"_a, "labels"_a.none(), "options"_a.none() = nb::none())
      .def("predict", &predict, "feeds"_a, "options"_a.none() = nb::none());
}

void register_values(nb::class_<Trainer>& trainer) {
  using namespace nb::literals;
  trainer.def_prop_ro("averages", [](const Trainer& self) { return to_dict(self.averages()); })
      .def("use_averages", &Trainer::use_averages, "use"_a)
      .def("end_profiling", &Trainer::end_profiling)
      .def_prop_ro("parameters", [](const Trainer& self) { return to_dict(self.parameter_views()); })
      .def_prop_ro("states", [](const Trainer& self) { return to_dict(self.state_views()); })
      .def_prop_ro("momentum", [](const Trainer& self) { return to_dict(self.momentum()); })
      .def_prop_ro("optimizer_state", [](const Trainer& self) { return to_dict(self.optimizer_state()); })
      .def_prop_ro("rank", [](const Trainer& self) { return self.options().communicator ? self.options().communicator->rank() : 0; })
      .def_prop_ro("num_ranks", [](const Trainer& self) { return self.options().communicator ? self.options().communicator->size() : 1; })
      .def_prop_ro("num_updates", &Trainer::num_updates)
      .def_prop_ro("loss_scale",
                   [](const Trainer& self) { return self.loss_scale() ? std::optional(self.loss_scale()->scale) : std::nullopt; })
      .def_prop_ro("num_skipped", [](const Trainer& self) { return self.loss_scale().value_or(train::LossScale()).num_skipped; })
      .def_prop_ro("scheduled_rate", &Trainer::scheduled_rate)
      .def_prop_rw("learning_rate", &Trainer::learning_rate, &Trainer::set_learning_rate)
      .def_prop_ro("output_names", &Trainer::output_names);
}

void register_files(nb::class_<Trainer>& trainer) {
  using namespace nb::literals;
  trainer.def("save", &Trainer::save, "path"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "to_bytes", [](const Trainer& self, const train::Metadata& metadata) { return to_bytes(self.to_bytes(metadata)); }, "metadata"_a)
      .def("save_adapters", &Trainer::save_adapters, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("load_adapters", &Trainer::load_adapters, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("to_text", &Trainer::to_text)
      .def_prop_ro("num_steps", [](const Trainer& self) { return self.position().num_steps; })
      .def("save_checkpoint", &Trainer::save_checkpoint, "path"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "load_checkpoint",
          [](Trainer& self, const std::string& path, bool own_settings) {
            return self.load_checkpoint(path, checkpoint_settings(own_settings));
          },
          "path"_a, "own_settings"_a, nb::call_guard<nb::gil_scoped_release>());
}

void register_checkpoints(nb::module_& module) {
  using namespace nb::literals;
  using train::CheckpointFolder;
  nb::class_<CheckpointFolder>(module, "CheckpointFolder")
      .def(
          "__init__",
          [](CheckpointFolder* self, const std::string& folder, int keep_last, bool asynchronous) {
            new (self) CheckpointFolder(folder, {.keep_last = keep_last, .asynchronous = asynchronous});
          },
          "folder"_a, "keep_last"_a, "asynchronous"_a)
      .def("save", &CheckpointFolder::save, "trainer"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("wait", &CheckpointFolder::wait, nb::call_guard<nb::gil_scoped_release>())
      .def("files", &CheckpointFolder::files)
      .def(
          "resume",
          [](const CheckpointFolder& self, Trainer& trainer, bool own_settings) -> std::optional<std::pair<std::string, train::Metadata>> {
            auto resumed = self.resume(trainer, checkpoint_settings(own_settings));
            if (!resumed) return std::nullopt;
            return std::pair(std::move(resumed->path), std::move(resumed->metadata));
          },
          "trainer"_a, "own_settings"_a, nb::call_guard<nb::gil_scoped_release>());

  using train::EventFile;
  nb::class_<EventFile>(module, "EventFile")
      .def(nb::init<const std::string&>(), "folder"_a)
      .def("write", &EventFile::write, "step"_a, "scalars"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("path", &EventFile::path);
}

}  // namespace

void register_train(nb::module_& module) {
  using namespace nb::literals;
  module.def("untied", &train::untied, "model"_a, "patterns"_a);
  register_trainer_options(module);
  nb::class_<Trainer> trainer(module, "Trainer");
  register_making(trainer);
  register_steps(trainer);
  register_values(trainer);
  register_files(trainer);
  register_checkpoints(module);
  register_loader(module);
}

}  // namespace treadle::python
