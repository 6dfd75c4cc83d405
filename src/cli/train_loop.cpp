#include "cli/train_loop.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include "cli/model_totals.h"
#include "cli/pictures.h"
#include "cli/train_answers.h"
#include "cli/train_checks.h"
#include "cli/train_curve.h"
#include "cli/train_profile.h"
#include "core/values/dispatch.h"
#include "session/model.h"
#include "train/graph/training_graph.h"
#include "treadle/communicator.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using train::Loss;
using train::Metadata;
using train::NamedTensors;

constexpr int kInterrupted = 130;

volatile std::sig_atomic_t stop_asked = 0;

// Handles SIGINT and SIGTERM while it exists: the first signal asks the training loop to stop, the second ends the process.
class StopSignals {
 public:
  StopSignals() {
    stop_asked = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { stop_asked = 1; };
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

// If the model's batch size is fixed, checks that the loader has the same, and makes the loader drop a smaller last batch.
void fit_batch(const std::vector<ValueInfo>& inputs, train::LoaderOptions& loader) {
  for (const ValueInfo& info : inputs)
    if (const int64_t* batch = info.shape.empty() ? nullptr : std::get_if<int64_t>(&info.shape[0])) {
      const int64_t joint = *batch * loader.num_ranks;
      if (joint != loader.batch_size)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the input \"{}\" takes batches of {} only, {} over all ranks, not {}: --batch-size {}, or --dynamic-batch "
                                "for batches of any size",
                                info.name, *batch, joint, loader.batch_size, joint));
      loader.drop_last = true;
    }
}

std::optional<double> as_fraction(const std::string& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// While this object exists, the trainer uses the moving averages of its parameters, if it has any.
class WithAverages {
 public:
  explicit WithAverages(train::Trainer& trainer) : trainer_(trainer.options().ema_decay > 0 ? &trainer : nullptr) {
    if (trainer_) trainer_->use_averages(true);
  }
  ~WithAverages() {
    if (trainer_) trainer_->use_averages(false);
  }
  WithAverages(const WithAverages&) = delete;
  WithAverages& operator=(const WithAverages&) = delete;

 private:
  train::Trainer* trainer_;
};

// If a.model is a folder of training artifacts, opens a trainer from it and sets a.trainer to its options. Otherwise returns nullopt.
std::optional<train::Trainer> open_if_artifacts(TrainArguments& a) {
  if (!fs::is_directory(a.model)) return std::nullopt;
  if (!a.given_to_trainer.empty() || a.trainer.communicator)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has artifacts of one trainer, alone, with its loss and optimizer: {} is for `treadle artifacts`", a.model,
                            a.given_to_trainer.empty() ? "a communicator" : *a.given_to_trainer.begin()));
  std::optional<train::Trainer> trainer(train::Trainer::open_artifacts(a.model, a.trainer.session));
  a.trainer = trainer->options();
  return trainer;
}

class TrainingRun {
 public:
  explicit TrainingRun(TrainArguments& a)
      : a_(a),
        ranks_(a.trainer.communicator.get()),
        trainer_(open_if_artifacts(a)),
        model_(trainer_ ? trainer_->model() : Model::load(a.model)) {
    if (ranks_) a_.loader.rank = ranks_->rank(), a_.loader.num_ranks = ranks_->size();
    model_.impl().need_original();
    // Applies options that change the model's batch size or number of classes, so that the data can be checked against the model.
    const Model trained = trainer_ ? model_ : train::prepared(model_, a_.trainer);
    const std::vector<ValueInfo> inputs = train::fed_inputs(a_.trainer, trained);
    check_options_have_effect(a_, trained);
    if (!is_first()) a_.quiet = true, a_.log.clear(), a_.curve.clear();
    open_all(inputs, train::label_form(a_.trainer, trained));
    fit_batch(inputs, a_.loader);
    loader_.emplace(training_, a_.loader);
    if (validation_) {
      const int64_t batch = std::max<int64_t>(a_.loader.batch_size / a_.loader.num_ranks, 1);
      const train::LoaderOptions options{
          .batch_size = batch, .shuffle = false, .drop_last = a_.loader.drop_last, .prefetch = a_.loader.prefetch};
      const auto own = part_of_rank(validation_, a_.loader);
      // If the validation set is small, this rank may have no batch of it.
      if (!ranks_ || own->num_samples() >= (options.drop_last ? batch : 1)) validation_loader_.emplace(own, options);
    }
    if (a_.skip_nan && a_.trainer.early_updates)
      throw Error(ErrorCode::invalid_argument,
                  "--skip-nan goes with no --early-updates: a step with a NaN may have updated some parameters");
    if (a_.patience > 0 && !validation_) throw Error(ErrorCode::invalid_argument, "--patience needs --validation");
    const auto kind = a_.trainer.schedule.kind;
    using Kind = train::Schedule::Kind;
    if (!trainer_ && a_.trainer.schedule.total_steps == 0 && (kind == Kind::cosine || kind == Kind::linear || kind == Kind::one_cycle))
      a_.trainer.schedule.total_steps =
          std::max<int64_t>(a_.epochs * loader_->batches_per_epoch() / std::max(a_.trainer.accumulation_steps, 1), 1);
    if (!trainer_) trainer_.emplace(model_, a_.trainer);
    // With loss scaling, the trainer itself skips steps whose gradients are not finite.
    if (a_.unchecked && trainer_->loss_scale())
      throw Error(ErrorCode::invalid_argument,
                  "--no-check needs a loss that is not scaled: no step of a scaled one looks for NaN in each node");
    if (!a_.unchecked && !trainer_->loss_scale()) run_options_.check_finite = FiniteCheck::nan;
    resume();
    log_.emplace(a_.log, resumed_, a_.tensorboard);
    progress_.emplace(a_.epochs, loader_->batches_per_epoch(), a_.quiet);
    if (!a_.profile.empty() && is_first()) profile_.emplace(a_, *trainer_);
  }

  int run() {
    if (!a_.adapters.empty() && a_.trainer.lora.rank == 0)
      throw Error(ErrorCode::invalid_argument, "--adapters is given without --lora-rank: there are none to write");
    const StopSignals signals;
    progress_->say(fmt::format("{} samples, {} steps an epoch, {} parameters{}", training_->num_samples(), loader_->batches_per_epoch(),
                               num_parameters(),
                               validation_ ? fmt::format(", {} samples to validate with", validation_->num_samples()) : ""));
    if (resumed_) progress_->say(fmt::format("resumed after step {}", trainer_->position().num_steps));
    log_->write("start",
                {{"step", static_cast<double>(trainer_->position().num_steps)}, {"samples", static_cast<double>(training_->num_samples())}},
                a_.model);
    while (loader_->position().epoch < a_.epochs && !is_over()) {
      if (!run_epoch()) return interrupted();
    }
    if (profile_) progress_->say(profile_->finish());
    return finish();
  }

 private:
  void open_all(const std::vector<ValueInfo>& inputs, const train::LabelForm& form) {
    a_.data.read_picture = [](const ValueInfo& input, const std::string& path) { return image_for(input, path); };
    train::OpenedData opened = train::open_data(a_.data, inputs, form);
    classes_ = opened.classes;
    training_ = opened.data;
    if (a_.validation.empty()) return;
    if (a_.holds_out_a_fraction()) {
      const train::SplitData parts = train::split(opened.data, *as_fraction(a_.validation[0]), a_.loader.seed);
      training_ = parts.training, validation_ = parts.validation;
      return;
    }
    train::DataFiles held_out = a_.data;
    held_out.paths = a_.validation;
    if (!a_.validation_labels.empty()) held_out.labels = a_.validation_labels;
    validation_ = train::open_data(held_out, inputs, form, classes_).data;
  }

  void resume() {
    if (a_.checkpoint.empty()) {
      if (a_.resume) throw Error(ErrorCode::invalid_argument, "--resume needs --checkpoint FOLDER");
      return;
    }
    checkpoints_.emplace(a_.checkpoint, train::CheckpointFolderOptions{.keep_last = a_.keep_last, .asynchronous = a_.asynchronous});
    if (!a_.resume) {
      if (is_first() && !checkpoints_->files().empty())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the folder \"{}\" has checkpoints already: --resume goes on from the newest; else take another folder",
                                a_.checkpoint));
      return;
    }
    const auto from = checkpoints_->resume(*trainer_);
    if (!from) return;
    loader_->resume(from->metadata);
    resumed_ = true;
    for (const auto& [name, value] : from->metadata) {
      const double number = as_fraction(value).value_or(0);
      if (name == "train.curve") curve_ = curve_from_text(value);
      if (name == "train.loss_sum") loss_sum_ = number;
      if (name == "train.loss_count") loss_count_ = static_cast<int64_t>(number);
      if (name == "train.best_loss") best_.loss = number;
      if (name == "train.best_accuracy") best_.accuracy = number;
      if (name == "train.epochs_since_best") since_best_ = static_cast<int64_t>(number);
    }
  }

  Metadata position_metadata() const {
    Metadata all = loader_->to_metadata();
    all.emplace_back("train.loss_sum", fmt::format("{}", loss_sum_));
    all.emplace_back("train.loss_count", std::to_string(loss_count_));
    if (std::isfinite(best_.loss)) all.emplace_back("train.best_loss", fmt::format("{}", best_.loss));
    if (best_.accuracy) all.emplace_back("train.best_accuracy", fmt::format("{}", *best_.accuracy));
    all.emplace_back("train.epochs_since_best", std::to_string(since_best_));
    all.emplace_back("train.curve", curve_to_text(curve_));
    return all;
  }

  /// Returns true for rank 0, the only one that writes files and messages.
  bool is_first() const { return !ranks_ || ranks_->rank() == 0; }
  /// Returns true if any rank calls this function with true. All ranks must call it.
  bool any_rank(bool own) const {
    float count = own ? 1 : 0;
    if (ranks_) ranks_->all_reduce(&count, 1, DType::float32);
    return count > 0;
  }

  bool is_over() const { return a_.patience > 0 && since_best_ >= a_.patience; }

  // Runs the rest of an epoch. @return true if the epoch was completed, false after a signal.
  bool run_epoch() {
    const auto start = Clock::now();
    const int64_t epoch = loader_->position().epoch + 1;
    double rate = trainer_->scheduled_rate();
    while (true) {
      if (any_rank(stop_asked)) return false;
      std::optional<NamedTensors> batch = loader_->next();
      if (!batch) break;
      rate = trainer_->scheduled_rate();
      if (const std::optional<double> loss = step(std::move(*batch))) {
        loss_sum_ += *loss, ++loss_count_;
        const uint64_t steps = trainer_->position().num_steps;
        progress_->step(epoch, loader_->position().batch, *loss);
        if (a_.log_steps > 0 && steps % static_cast<uint64_t>(a_.log_steps) == 0)
          log_->write(
              "step",
              {{"epoch", static_cast<double>(epoch)}, {"step", static_cast<double>(steps)}, {"loss", *loss}, {"learning_rate", rate}});
        if (checkpoints_ && a_.checkpoint_steps > 0 && steps % static_cast<uint64_t>(a_.checkpoint_steps) == 0)
          checkpoints_->save(*trainer_, position_metadata());
      }
    }
    EpochReport report{.epoch = epoch, .num_epochs = a_.epochs, .step = trainer_->position().num_steps, .rate = rate};
    report.loss = loss_count_ ? loss_sum_ / static_cast<double>(loss_count_) : std::nan("");
    loss_sum_ = 0, loss_count_ = 0;
    if (validation_) report.is_best = validate(report);
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    progress_->epoch(report);
    log_->write(report);
    last_ = report;
    curve_.push_back(point_of(report));
    if (!a_.curve.empty()) write_curve(a_.curve, curve_);
    if (checkpoints_) checkpoints_->save(*trainer_, position_metadata());
    return true;
  }

  // Runs a training step. Returns its loss; nullopt if the step was skipped because values were not finite.
  std::optional<double> step(NamedTensors batch) {
    const auto [feeds, labels] = train::feeds_and_labels(std::move(batch));
    try {
      const uint64_t skipped_before = num_overflows();
      if (profile_) profile_->begin_step();
      const double loss = trainer_->step(feeds, labels, &run_options_);
      if (profile_) progress_->say(profile_->end_step());
      if (num_overflows() > skipped_before) return overflowed(loss);
      if (std::isfinite(loss)) return loss;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("step {}: the loss is {}, and the parameters are spoilt; a smaller --learning-rate or --clip-norm may help",
                              trainer_->position().num_steps, std::isnan(loss) ? "NaN" : "infinite"));
    } catch (const Error& error) {
      // The step has found NaN in the output of a node. It has changed nothing, unless the option early_updates is set.
      if (error.message().find(" is NaN at ") == std::string::npos) throw;
      if (!a_.skip_nan)
        throw Error(
            error.code(),
            fmt::format("step {}: {}\n{} a smaller --learning-rate or --clip-norm may help.", trainer_->position().num_steps + 1,
                        error.what(),
                        a_.trainer.early_updates ? "Some parameters may be updated; checkpoints before this step are whole. Late updates or"
                                                 : "Nothing was changed by this step. --skip-nan leaves such steps out;"));
      return left_out(error.what());
    }
  }

  uint64_t num_overflows() const { return trainer_->loss_scale().value_or(train::LossScale()).num_skipped; }
  // Handles a step with a gradient that was not finite, after which loss scaling has reduced the scale. Throws if the loss itself is not
  // finite, because no scale helps then.
  std::optional<double> overflowed(double loss) {
    if (!std::isfinite(loss) && !a_.skip_nan)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("step {}: the loss is {}. Nothing was changed by this step. --skip-nan leaves such steps out; a smaller "
                              "--learning-rate or --clip-norm may help, or float32 for the nodes whose values exceed float16.",
                              trainer_->position().num_steps + 1, std::isnan(loss) ? "NaN" : "infinite"));
    return left_out(fmt::format("a gradient is infinite or NaN; the loss is scaled by {:g} from now on", trainer_->loss_scale()->scale));
  }

  std::nullopt_t left_out(const std::string& why) {
    ++skipped_;
    progress_->say(fmt::format("batch {} of epoch {} left out: {}", loader_->position().batch, loader_->position().epoch + 1, why));
    log_->write("skipped", {{"step", static_cast<double>(trainer_->position().num_steps)}}, why);
    return std::nullopt;
  }

  Evaluation evaluate() {
    const WithAverages averages(*trainer_);
    double loss = 0;
    int64_t samples = 0;
    RightAnswers answers;
    const size_t output = output_index();
    while (validation_loader_) {
      std::optional<NamedTensors> batch = validation_loader_->next();
      if (!batch) break;
      const int64_t count = batch->begin()->second.shape()[0];
      const auto [feeds, labels] = train::feeds_and_labels(std::move(*batch));
      samples += count;
      if (output == kNoOutput) {
        loss += trainer_->evaluate(feeds, labels) * static_cast<double>(count);
        continue;
      }
      const train::Trainer::Evaluated made = trainer_->evaluate_with_outputs(feeds, labels);
      loss += made.loss * static_cast<double>(count);
      const RightAnswers more = count_right(made.outputs[output].tensor(), labels, a_.trainer);
      answers.right += more.right, answers.all += more.all;
    }
    std::array<double, 4> sums{loss, static_cast<double>(samples), static_cast<double>(answers.right), static_cast<double>(answers.all)};
    if (ranks_) ranks_->all_reduce(sums.data(), sums.size(), DType::float64);
    Evaluation made{.loss = sums[0] / sums[1]};
    if (sums[3] > 0) made.accuracy = sums[2] / sums[3];
    return made;
  }

  // Evaluates the model. If its loss is the best so far, returns true and (with --patience) saves the model.
  bool validate(EpochReport& report) {
    report.validation = evaluate();
    const bool better = report.validation->loss < best_.loss;
    since_best_ = better ? 0 : since_best_ + 1;
    if (better) best_ = *report.validation;
    if (better && a_.patience > 0) save(report.validation);
    return better;
  }

  static constexpr size_t kNoOutput = std::numeric_limits<size_t>::max();
  // Returns the index of the model output from which correct predictions are counted; kNoOutput if there is none.
  size_t output_index() const {
    if (!has_classes(a_.trainer.loss) && a_.trainer.loss != Loss::binary_cross_entropy_with_logits) return kNoOutput;
    const std::vector<std::string>& names = trainer_->output_names();
    for (size_t i = 0; i < names.size(); ++i)
      if (a_.trainer.output.empty() || names[i] == a_.trainer.output) return i;
    return kNoOutput;
  }

  int64_t num_parameters() const {
    int64_t count = 0;
    for (const auto& [name, tensor] : trainer_->parameter_views()) count += tensor.num_elements();
    return count;
  }

  void save(const std::optional<Evaluation>& evaluation) {
    if (!is_first()) return;
    const WithAverages averages(*trainer_);
    Metadata metadata{{"trained_on", fmt::format("{} samples", training_->num_samples())},
                      {"steps", std::to_string(trainer_->position().num_steps)}};
    if (evaluation) metadata.emplace_back("validation_loss", fmt::format("{:.6g}", evaluation->loss));
    if (evaluation && evaluation->accuracy) metadata.emplace_back("validation_accuracy", fmt::format("{:.4f}", *evaluation->accuracy));
    std::string names;
    for (const std::string& name : classes_) names += (names.empty() ? "" : "\n") + name;
    if (!names.empty()) metadata.emplace_back(kClassNames, names);
    trainer_->save(a_.output, metadata);
    if (!a_.adapters.empty()) trainer_->save_adapters(a_.adapters);
  }

  int interrupted() {
    if (profile_) progress_->say(profile_->finish());
    const uint64_t steps = trainer_->position().num_steps;
    if (checkpoints_) {
      const std::string path = checkpoints_->save(*trainer_, position_metadata());
      checkpoints_->wait();
      progress_->say(fmt::format("interrupted after step {}; checkpoint {}: --resume goes on", steps, path));
    } else {
      save(std::nullopt);
      progress_->say(fmt::format("interrupted after step {}; {} has the model as it is (with --checkpoint FOLDER, training could go on)",
                                 steps, a_.output));
    }
    log_->write("interrupted", {{"step", static_cast<double>(steps)}});
    return kInterrupted;
  }

  int finish() {
    std::optional<Evaluation> evaluation;
    if (any_rank(is_first() && a_.patience > 0 && std::isfinite(best_.loss) && fs::exists(a_.output))) {
      evaluation = best_;
    } else {
      if (last_) evaluation = last_->validation;
      if (!last_ && validation_) evaluation = evaluate();  // if a resumed run has no epoch left
      save(evaluation);
    }
    if (checkpoints_) checkpoints_->wait();
    std::string line = fmt::format("{}: {} steps", a_.output, trainer_->position().num_steps);
    if (is_over()) line += fmt::format(", stopped after {} epochs without a better validation loss", since_best_);
    if (evaluation) line += fmt::format(", validation loss {:.4f}", evaluation->loss);
    if (evaluation && evaluation->accuracy) line += fmt::format(", accuracy {:.4f}", *evaluation->accuracy);
    if (skipped_ > 0) line += fmt::format(", {} steps left out for {}", skipped_, trainer_->loss_scale() ? "overflow" : "NaN");
    progress_->say(line);
    RunLog::Fields fields{{"step", static_cast<double>(trainer_->position().num_steps)}, {"skipped", static_cast<double>(skipped_)}};
    if (evaluation) fields.emplace_back("validation_loss", evaluation->loss);
    if (evaluation && evaluation->accuracy) fields.emplace_back("validation_accuracy", *evaluation->accuracy);
    log_->write("end", fields, a_.output);
    return 0;
  }

  TrainArguments& a_;
  Communicator* const ranks_;  // null: only this process trains
  std::optional<train::Trainer> trainer_;
  Model model_;
  std::vector<std::string> classes_;
  std::shared_ptr<const train::Dataset> training_, validation_;
  std::optional<train::DataLoader> loader_, validation_loader_;
  std::optional<train::CheckpointFolder> checkpoints_;
  std::optional<RunLog> log_;
  std::optional<TrainProgress> progress_;
  std::optional<StepProfile> profile_;
  RunOptions run_options_;
  bool resumed_ = false;
  double loss_sum_ = 0;
  int64_t loss_count_ = 0, since_best_ = 0, skipped_ = 0;
  Evaluation best_{.loss = std::numeric_limits<double>::infinity()};
  std::optional<EpochReport> last_;
  std::vector<CurvePoint> curve_;
};

}  // namespace

bool TrainArguments::holds_out_a_fraction() const { return validation.size() == 1 && as_fraction(validation[0]).has_value(); }

int run_training(TrainArguments& arguments) {
  std::string name = arguments.communicator.empty() ? launched_communicator() : arguments.communicator;
  if (name == "none") name.clear();
  if (name.empty()) return TrainingRun(arguments).run();
  const auto ranks = connect_communicator(name, arguments.trainer.communicator_deadline_s);
  arguments.trainer.communicator = ranks;
  try {
    return TrainingRun(arguments).run();
  } catch (const Error& error) {
    ranks->fail(error.what());  // lets the other ranks end with this error now instead of at their deadline
    throw Error(error.code(), fmt::format("rank {} of {}: {}", ranks->rank(), ranks->size(), error.what()));
  }
}

}  // namespace treadle::cli
