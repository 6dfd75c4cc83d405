// Marks for external tracing tools, enabled by build options: USDT probes (TREADLE_USDT; for perf, bpftrace, SystemTap) and NVTX ranges
// (TREADLE_NVTX; for Nsight Systems). Without these options the classes do nothing.
#pragma once

#ifdef TREADLE_USDT
#include <sys/sdt.h>
#endif
#ifdef TREADLE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include <cstdint>
#include <optional>

#include "exec/program/program.h"
#include "graph/graph.h"

#ifdef TREADLE_USDT
#define TREADLE_PROBE1(name, argument) DTRACE_PROBE1(treadle, name, argument)
#define TREADLE_PROBE2(name, first, second) DTRACE_PROBE2(treadle, name, first, second)
#else
#define TREADLE_PROBE1(name, argument) static_cast<void>(0)
#define TREADLE_PROBE2(name, first, second) static_cast<void>(0)
#endif

namespace treadle::exec {

/// An NVTX range that lasts as long as this object.
class NvtxRange {
 public:
#ifdef TREADLE_NVTX
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
#else
  explicit NvtxRange(const char* /*name*/) {}
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

/// Marks a node. Fires the probes `treadle:node_begin` and `treadle:node_end` with the operator and the node's name (char*), or makes an
/// NVTX range with the node's name.
class NodeMark {
 public:
  explicit NodeMark(const Node& node) : node_(node), range_(node.name.empty() ? node.op_type.c_str() : node.name.c_str()) {
    TREADLE_PROBE2(node_begin, node.op_type.c_str(), node.name.c_str());
  }
  ~NodeMark() { TREADLE_PROBE2(node_end, node_.op_type.c_str(), node_.name.c_str()); }

 private:
  [[maybe_unused]] const Node& node_;
  NvtxRange range_;
};

/// Marks a part of training: forward, backward, step. Fires the probes `treadle:part_begin` and `treadle:part_end` with its name (char*),
/// or makes an NVTX range, for example "treadle forward". Runs are nested within the part.
class PartMark {
 public:
  /// @param name  for example "treadle forward"; must be a literal
  explicit PartMark(const char* name) : name_(name), range_(name) { TREADLE_PROBE1(part_begin, name); }
  ~PartMark() { TREADLE_PROBE1(part_end, name_); }

 private:
  [[maybe_unused]] const char* name_;
  NvtxRange range_;
};

/// Marks the phases of a training step within its run, if nodes run in sequence: forward, backward, communication, optimizer. Fires the
/// same probes as PartMark.
class PhaseMarks {
 public:
  explicit PhaseMarks([[maybe_unused]] const Program& program)
#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
      : is_step_(index_of(program.commit_from()) < program.instructions().size())
#endif
  {
  }
  PhaseMarks(const PhaseMarks&) = delete;
  PhaseMarks& operator=(const PhaseMarks&) = delete;
  ~PhaseMarks() { enter(StepPhase::none); }

  void enter([[maybe_unused]] StepPhase phase) {
#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
    if (!is_step_ || phase == phase_) return;
    mark_.reset();
    phase_ = phase;
    if (phase != StepPhase::none) mark_.emplace(name_of(phase).data());  // name_of() returns a literal
#endif
  }

#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
 private:
  const bool is_step_;
  StepPhase phase_ = StepPhase::none;
  std::optional<PartMark> mark_;
#endif
};

/// Marks a run. Fires the probes `treadle:run_begin` and `treadle:run_end` with the run's number, or makes an NVTX range "treadle run".
class RunMark {
 public:
  explicit RunMark(uint64_t run_id) : run_id_(run_id), range_("treadle run") { TREADLE_PROBE1(run_begin, run_id); }
  ~RunMark() { TREADLE_PROBE1(run_end, run_id_); }

 private:
  [[maybe_unused]] uint64_t run_id_;
  NvtxRange range_;
};

}  // namespace treadle::exec

#undef TREADLE_PROBE1
#undef TREADLE_PROBE2
