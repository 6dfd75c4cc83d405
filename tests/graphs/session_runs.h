// Runs cases in sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/graphs/settings.h"

namespace treadle::graphs {

// An object that computes sets of feeds in one way, for example by a session.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<Datum> run(const Feeds& feeds) = 0;
};

/// Makes a session with the setting's options.
std::unique_ptr<Runner> make_session_runner(const std::string& model, const Setting& setting);

/// Runs the first set of feeds a few times, passing states from run to run. Each run is judged for the states that it began with.
std::string run_states(const Case& c, const Judgement& judgement, const Setting& setting);
/// Runs one session on three threads. Each thread uses the sets of feeds in another order.
std::string run_clients(const Case& c, const Judgement& judgement, const Setting& setting);
/// Runs the case with some inner values of the main graph fetched, and others fed.
std::string run_fetches(const Case& c, const Setting& setting);

/// Returns true if rounding decides whether the case is valid.
bool is_undecided(const Case& c);
/// Returns the differences of a run's outputs that remain after a thorough judgement.
std::string compare_outputs(const Case& c, const Judgement& judgement, size_t set, const std::vector<Datum>& outputs);

}  // namespace treadle::graphs
