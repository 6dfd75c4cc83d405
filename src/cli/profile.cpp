// Implements the command `treadle profile`.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <span>

#include "cli/attach.h"
#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/profile_output.h"
#include "cli/remedies.h"
#include "cli/terminal.h"
#include "core/files/file.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle::cli {
namespace {

constexpr int kSlower = 3, kUnclear = 4;  // exit statuses of --diff; 1 stands for errors

struct ProfileArguments {
  std::string model, output, stream, attach;
  std::vector<std::string> diff;
  InputOptions inputs;
  SessionOptions session;
  ProfileTableOptions table;
  int runs = 0, warmup = 3, depth = 0;
  double seconds = 2, tolerance = 0.03;
  bool json = false, without_remedies = false, kernel_phases = false, tree = false;
};

double profile_clock_ns() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Reads a file, which may be compressed with gzip.
std::string read_text(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw Error(ErrorCode::not_found, "cannot read " + path);
  std::string text;
  std::array<char, 65536> block;
  int size = 0;
  while ((size = gzread(file.get(), block.data(), block.size())) > 0) text.append(block.data(), static_cast<size_t>(size));
  if (size < 0) throw Error(ErrorCode::io_error, "cannot read " + path);
  return text;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  clear_line(stderr);
  show_on(stderr, "{}", text);
}

int compare_files(const ProfileArguments& a) {
  // Reads both files before parsing one, to report a missing file early.
  const std::string before = read_text(a.diff[0]), after = read_text(a.diff[1]);
  const ProfileDifference difference = compare_profiles(read_profile(before, ProfileParts::without_timeline),
                                                        read_profile(after, ProfileParts::without_timeline), a.tolerance);
  if (a.json)
    show_json_text(difference_to_json(difference));
  else
    show("{}\n", difference_to_table(difference, a.table));
  return difference.run.verdict == Change::slower ? kSlower : difference.run.verdict == Change::unclear ? kUnclear : 0;
}

// Returns the options that differ from their defaults, as text for the report.
std::string options_text(const SessionOptions& options) {
  const SessionOptions defaults;
  std::string text;
  for (const Option<SessionOptions>& option : session_option_table().rows())
    if (option.is_set(options, defaults)) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", option.name, option.get(options));
  return text;
}

// Alternates runs with and without recording. The difference of their times is the cost of recording.
Profile measure_runs(Session& session, IoBinding& binding, const ProfileArguments& a, ProfileContext& context) {
  auto timed = [&] {
    const double start = profile_clock_ns();
    session.run(binding);
    return profile_clock_ns() - start;
  };
  ProfilerOptions options{.memory = a.table.memory, .kernel_phases = a.kernel_phases, .passes = !session.model().impl().compiled};
  {
    const Profiler forgotten = session.profiler(options);
    for (int i = 0; i < a.warmup; ++i) timed();
  }
  options.stream_to = a.stream;
  Profiler profiler = session.profiler(options);
  constexpr size_t kLeastRuns = 11, kMostRuns = 2000;
  const double end = profile_clock_ns() + a.seconds * 1e9;
  auto enough = [&] {
    const size_t done = context.call_ns.size();
    return a.runs > 0 ? done >= static_cast<size_t>(a.runs) : done >= kMostRuns || (done >= kLeastRuns && profile_clock_ns() > end);
  };
  while (!enough()) {
    profiler.resume();
    context.call_ns.push_back(timed());
    profiler.pause();
    context.plain_ns.push_back(timed());
    if (context.call_ns.size() % 32 == 0) progress(fmt::format("{} runs", context.call_ns.size()));
  }
  return profiler.profile();
}

// Returns true for a recording that --stream has written.
bool is_recording(const std::string& path) {
  constexpr std::string_view kBegin = "TREADLE PROFILE\n";
  std::array<char, kBegin.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), begin.size()) && std::string_view(begin.data(), begin.size()) == kBegin;
}

bool is_saved(const std::string& path) { return ends_with(path, ".json") || ends_with(path, ".json.gz"); }

struct MadeProfile {
  Profile profile;
  ProfileReport report;
};

MadeProfile profile_model(const ProfileArguments& a) {
  ProfileContext context{
      .model = a.model, .command = "treadle profile " + a.model, .options = options_text(a.session), .warmup_runs = a.warmup + 1};
  progress("loading");
  double start = profile_clock_ns();
  Session session(a.model, a.session);
  context.load_ms = (profile_clock_ns() - start) / 1e6;
  const MadeFeeds made = make_feeds(session.inputs(), a.inputs);
  const std::map<std::string, Datum>& feeds = made.values;
  context.assumed_extents = joined(made.assumed);
  start = profile_clock_ns();
  with_assumed_extents(made.assumed, a.inputs, [&] { session.run(feeds); });
  context.first_run_ms = (profile_clock_ns() - start) / 1e6;
  IoBinding binding(session);
  for (const auto& [name, value] : feeds) binding.bind_input(name, value);
  for (const ValueInfo& info : session.outputs()) binding.bind_output(info.name);
  Profile profile = measure_runs(session, binding, a, context);
  progress("measuring what the machine reaches");
  measure_peaks_for(profile, context);
  if (!a.without_remedies) {
    context.remedies_tried = true;
    context.remedies =
        try_remedies({.model = a.model, .options = a.session, .inputs = a.inputs, .feeds = feeds, .trying = [](std::string_view what) {
                        progress(fmt::format("trying {}", what));
                      }});
  }
  progress("");
  ProfileReport report = report_profile(profile, context);
  return {std::move(profile), std::move(report)};
}

// Profiles another process, and reports its session or trainer that took the most time. That process's options are not known here.
MadeProfile profile_of_others(const ProfileArguments& a) {
  progress(fmt::format("recording for {} s", a.seconds));
  AttachedClients attached = attach(a.attach, {.seconds = a.seconds, .memory = a.table.memory, .kernel_phases = a.kernel_phases});
  std::vector<AttachedClient>& clients = attached.clients;
  ProfileContext context{.model = clients[0].job, .command = "treadle profile --attach " + a.attach};
  progress("measuring what the machine reaches");
  measure_peaks_for(clients[0].profile, context);
  progress("");
  if (attached.all_ended)
    show_on(stderr, "{} ended after {:.1f} of {} s: what was written until then is shown\n", clients[0].job, attached.seconds, a.seconds);
  for (size_t i = 1; i < clients.size(); ++i)
    show_on(stderr, "also ran, but less: {} ({} runs, {} nodes)\n", clients[i].job, clients[i].profile.runs.size(),
            clients[i].profile.nodes.size());
  ProfileReport report = report_profile(clients[0].profile, context);
  return {std::move(clients[0].profile), std::move(report)};
}

int profile_command(const ProfileArguments& a) {
  if (!a.diff.empty()) return compare_files(a);
  const bool attaches = !a.attach.empty();
  if (a.model.empty() && !attaches)
    throw Error(ErrorCode::invalid_argument, "a model, a profile (.json), --attach, or --diff with two profiles is expected");
  const bool recording = is_recording(a.model), saved = is_saved(a.model);
  if (!a.output.empty() && !saved) check_profile_output("--output", a.output);  // before measuring, so that no work is lost
  auto read_recording = [&] {
    Profile profile = read_profile_recording(a.model);
    ProfileContext context{.model = a.model};
    measure_peaks_for(profile, context);
    ProfileReport report = report_profile(profile, context);
    return MadeProfile{std::move(profile), std::move(report)};
  };
  const auto read_saved = [&] {
    const bool shows_timeline = a.json || !a.output.empty();
    return MadeProfile{{}, read_profile(read_text(a.model), shows_timeline ? ProfileParts::all : ProfileParts::without_timeline)};
  };
  const MadeProfile made = attaches ? profile_of_others(a) : recording ? read_recording() : saved ? read_saved() : profile_model(a);
  const ProfileReport& report = made.report;
  if (!a.output.empty()) write_profile_output(a.output, report, &made.profile);
  if (a.json)
    show_json_text(profile_to_json(report));
  else
    show_text(stdout, a.tree ? profile_to_tree(report, {.depth = a.depth}) : profile_to_table(report, a.table));
  if (!a.output.empty() && !a.json) show("\nwritten to {}\n", a.output);
  return 0;
}

void refuse_others(const CLI::App& app, const std::set<std::string>& fit, const std::string& why) {
  for (const CLI::Option* option : app.get_options())
    if (const std::string name = option->get_name(); option->count() > 0 && name != "--help" && !fit.contains(name))
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} does not go with it", why, name));
}

// Rejects options that have no effect together with the others.
void check_options(const CLI::App& app, const ProfileArguments& a) {
  const GivenOptions given(app);
  given.need(!a.json || !a.diff.empty(), "the tables: no --json", {"--top", "--sort", "--tree"});
  given.need(!a.tree, "the tables: no --tree", {"--top", "--sort"});
  given.need(a.runs <= 0, "no --runs, which says how many", {"--seconds"});
  if (!a.attach.empty())  // the other process has its own model, inputs and options
    return refuse_others(
        app, {"--attach", "--output", "--json", "--memory", "--kernel-phases", "--top", "--sort", "--seconds", "--tree", "--depth"},
        "--attach records what another process runs");
  if (!a.diff.empty()) return refuse_others(app, {"--diff", "--tolerance", "--json", "--top"}, "--diff compares profiles that were taken");
  if (is_saved(a.model) || is_recording(a.model))
    return refuse_others(app, {"model", "--output", "--json", "--memory", "--top", "--sort", "--tree", "--depth"},
                         a.model + " is a profile that was taken");
  if (app.count("--tolerance") > 0) throw Error(ErrorCode::invalid_argument, "--tolerance is of --diff, and nothing else");
}

}  // namespace

Command add_profile(CLI::App& app) {
  app.description("Say where the time and memory of runs go, node by node, and what would help; compare two profiles");
  auto a = std::make_shared<ProfileArguments>();
  app.add_option("model", a->model, "ONNX file, or a profile (.json) or a recording (--stream) to show again");
  add_input_options(app, a->inputs);
  add_session_options(app, a->session);
  app.add_option("-o,--output", a->output,
                 "Also write a page (.html), the profile (.json, .csv), or every event (.pftrace, .trace.json, .folded, .speedscope.json, "
                 ".onnxruntime.json); with .gz behind it, compressed");
  app.add_option("--stream", a->stream,
                 "Write events to this file while they are recorded; `treadle profile FILE -o trace.pftrace` reads it, also after this "
                 "process was killed");
  app.add_option("--attach", a->attach,
                 "Record runs of another process for --seconds, or until Ctrl-C: a process, or a job's id or name (`treadle jobs`)");
  app.add_flag("--json", a->json, "Print JSON");
  app.add_flag("--memory", a->table.memory,
               "Record allocations too, and print what is held at the peak and what the arena holds over the run");
  app.add_flag("--kernel-phases", a->kernel_phases, "Record what kernels do, too: packing, products, epilogues and others, on each thread");
  app.add_option("--top", a->table.top, "Nodes to print; 0: all")->capture_default_str()->check(at_least(0));
  app.add_option("--sort", a->table.sort, "Order of the nodes")
      ->capture_default_str()
      ->check(CLI::IsMember({"time", "order", "name", "calls", "gflops", "bandwidth", "peak"}));
  CLI::Option* tree = app.add_flag("--tree", a->tree, "Print a run as a tree of layers and nodes, not as tables");
  app.add_option("--depth", a->depth, "Of --tree: levels below the run; 0: all")->capture_default_str()->check(at_least(0))->needs(tree);
  app.add_option("--runs", a->runs, "Number of recorded runs; by default as many as --seconds holds")->check(at_least(1));
  app.add_option("--seconds", a->seconds, "Length of the measurement")->capture_default_str()->check(between(1e-3, 1e6));
  app.add_option("--warmup", a->warmup, "Runs before, beside the first")->capture_default_str()->check(at_least(0));
  app.add_flag("--no-remedies", a->without_remedies, "Do not try what would help");
  app.add_option("--diff", a->diff, "Compare two profiles (.json): before, after")->expected(2);
  app.add_option("--tolerance", a->tolerance, "Of --diff: a change that does not matter")->check(at_least(0))->capture_default_str();
  app.footer(
      fmt::format("Exit status of --diff: 0 not slower, {} slower, {} nobody can tell, 1 an error.\n"
                  "Example: treadle profile model.onnx --threads 1 -o report.html",
                  kSlower, kUnclear));
  return [a, &app] {
    check_options(app, *a);
    return profile_command(*a);
  };
}

}  // namespace treadle::cli
