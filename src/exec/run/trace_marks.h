// Marks for tools that watch a process from outside, by build option: USDT probes (TREADLE_USDT; perf, bpftrace, SystemTap) and NVTX ranges
// (TREADLE_NVTX; Nsight Systems). Without them these objects are nothing.
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

namespace treadle::exec {

/// Around a node. Probes `treadle:node_begin` and `treadle:node_end` with the operator and the node's name (char*); an NVTX range of that
/// name.
class NodeMark {
 public:
  explicit NodeMark([[maybe_unused]] const Node& node)
#ifdef TREADLE_USDT
      : node_(node)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE2(treadle, node_begin, node.op_type.c_str(), node.name.c_str());
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA(node.name.empty() ? node.op_type.c_str() : node.name.c_str());
#endif
  }
  NodeMark(const NodeMark&) = delete;
  NodeMark& operator=(const NodeMark&) = delete;
  ~NodeMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE2(treadle, node_end, node_.op_type.c_str(), node_.name.c_str());
#endif
  }

#ifdef TREADLE_USDT
 private:
  const Node& node_;
#endif
};

/// Around a part of training: forward, backward, step. Probes `treadle:part_begin` and `treadle:part_end` with its name (char*); an NVTX
/// range "treadle forward". Runs are within it.
class PartMark {
 public:
  /// @param name  "treadle forward"; a literal
  explicit PartMark([[maybe_unused]] const char* name)
#ifdef TREADLE_USDT
      : name_(name)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, part_begin, name);
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA(name);
#endif
  }
  PartMark(const PartMark&) = delete;
  PartMark& operator=(const PartMark&) = delete;
  ~PartMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, part_end, name_);
#endif
  }

#ifdef TREADLE_USDT
 private:
  const char* name_;
#endif
};

/// Around the phases of a trainer's step, within its run, where nodes run one after the other: forward, backward, communication, optimizer.
/// Probes and ranges as PartMark's.
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
    if (phase != StepPhase::none) mark_.emplace(name_of(phase).data());  // of a literal
#endif
  }

#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
 private:
  const bool is_step_;
  StepPhase phase_ = StepPhase::none;
  std::optional<PartMark> mark_;
#endif
};

/// Around a run. Probes `treadle:run_begin` and `treadle:run_end` with the run's number; an NVTX range "treadle run".
class RunMark {
 public:
  explicit RunMark([[maybe_unused]] uint64_t run_id)
#ifdef TREADLE_USDT
      : run_id_(run_id)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, run_begin, run_id);
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA("treadle run");
#endif
  }
  RunMark(const RunMark&) = delete;
  RunMark& operator=(const RunMark&) = delete;
  ~RunMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, run_end, run_id_);
#endif
  }

#ifdef TREADLE_USDT
 private:
  uint64_t run_id_;
#endif
};

}  // namespace treadle::exec
