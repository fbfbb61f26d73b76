// Packets of Intel Processor Trace, as far as they are needed to walk a stream and to find what ptwrite wrote.
//
// A stream has no lengths: each packet is known by its first bytes, and a reader starts at a PSB, sixteen bytes that
// nothing else contains. `next_packet` decodes one packet at a time and keeps no state but whether the stream is inside a
// block of items (which changes what one byte means). It reads nothing beyond the bytes it is given.
// Reference: Intel's Software Developer's Manual, volume 3, "Intel Processor Trace", packet definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace memlens::importing {

enum class PtKind : uint8_t {
  kPad,
  kPsb,
  kPsbEnd,
  kTnt,
  kTip,
  kTipEnable,
  kTipDisable,
  kFup,
  kPip,
  kMode,
  kTraceStop,
  kCoreRatio,
  kTsc,
  kMtc,
  kTma,
  kCycles,
  kVmcs,
  kOverflow,
  kMaintenance,
  kPtWrite,
  kExecStop,
  kMwait,
  kPowerEntry,
  kPowerExit,
  kBlockBegin,
  kBlockItem,
  kBlockEnd,
  kControlFlow,
  kEventData,
  kShort,    // the bytes end inside a packet
  kUnknown,  // no packet begins like this: the stream is damaged, or the reader is not in step
};

struct PtPacket {
  PtKind kind = PtKind::kShort;
  uint8_t bytes = 0;          // length in the stream
  uint8_t ip_form = 0;        // of an address packet: how `payload` changes the last address
  bool has_ip = false;        // of kPtWrite and kBlockEnd: a kFup with its address follows
  uint64_t payload = 0;       // address bits, time stamp, or the value that ptwrite wrote
  uint32_t fast_counter = 0;  // of kTma
};

// What one byte means depends on the last kBlockBegin: items of 8 bytes, of 4, or none at all.
struct PtBlockState {
  uint8_t item_bytes = 0;
};

inline constexpr size_t kPsbBytes = 16;

PtPacket next_packet(std::span<const unsigned char> bytes, PtBlockState& block);

// Where the next PSB begins; bytes.size() when there is none that is whole.
size_t find_psb(std::span<const unsigned char> bytes);

// Address packets carry only what changed since the last one.
class PtLastIp {
 public:
  void reset() { ip_ = 0; }
  // False when the packet says that there is no address.
  bool update(const PtPacket& packet);
  uint64_t ip() const { return ip_; }

 private:
  uint64_t ip_ = 0;
};

}  // namespace memlens::importing
