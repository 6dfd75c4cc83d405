// Runs of a case through sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/graphs/settings.h"

namespace treadle::graphs {

// One place to run the sets of feeds.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<Datum> run(const Feeds& feeds) = 0;
};

/// One session, in the way that the setting names.
std::unique_ptr<Runner> make_session_runner(const std::string& model, const Setting& setting);

/// A few runs of the first set of feeds, whose states go from run to run: each is judged for the states that it began with.
std::string run_states(const Case& c, const Judgement& judgement, const Setting& setting);
/// Three threads with one session, each with the sets in an order of its own.
std::string run_clients(const Case& c, const Judgement& judgement, const Setting& setting);
/// Other values of the main graph than its outputs are fetched, and some are fed.
std::string run_fetches(const Case& c, const Setting& setting);

/// Whether rounding decides if the case is valid at all.
bool is_undecided(const Case& c);
/// What differs of a run's outputs; also by a thorough judgement.
std::string compare_outputs(const Case& c, const Judgement& judgement, size_t set, const std::vector<Datum>& outputs);

}  // namespace treadle::graphs
