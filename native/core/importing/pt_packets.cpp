#include "pt_packets.h"

#include <cstring>

namespace memlens::importing {
namespace {

constexpr unsigned char kPsb[kPsbBytes] = {0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
                                           0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82};

uint64_t little_endian(const unsigned char* at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return value;
}

PtPacket packet(PtKind kind, std::span<const unsigned char> bytes, size_t length) {
  if (bytes.size() < length) return {};
  PtPacket made;
  made.kind = kind;
  made.bytes = static_cast<uint8_t>(length);
  return made;
}

// A packet whose value is its last `value_bytes` bytes.
PtPacket with_value(PtKind kind, std::span<const unsigned char> bytes, size_t length, size_t value_bytes) {
  PtPacket made = packet(kind, bytes, length);
  if (made.kind == kind) made.payload = little_endian(bytes.data() + length - value_bytes, value_bytes);
  return made;
}

PtPacket unknown() {
  PtPacket made;
  made.kind = PtKind::kUnknown;
  made.bytes = 1;
  return made;
}

PtPacket address_packet(PtKind kind, std::span<const unsigned char> bytes) {
  static constexpr int8_t kLengths[8] = {0, 2, 4, 6, 6, -1, 8, -1};
  const uint8_t form = bytes[0] >> 5;
  if (kLengths[form] < 0) return unknown();
  const auto length = static_cast<size_t>(kLengths[form]);
  PtPacket made = with_value(kind, bytes, 1 + length, length);
  made.ip_form = form;
  return made;
}

PtPacket cycles(std::span<const unsigned char> bytes) {
  bool more = (bytes[0] & 4) != 0;
  uint64_t value = bytes[0] >> 3;
  size_t at = 1;
  for (unsigned shift = 5; more; shift += 7, ++at) {
    if (at >= bytes.size()) return {};
    if (at > 9) return unknown();  // more than 64 bits
    more = (bytes[at] & 1) != 0;
    if (shift < 64) value |= static_cast<uint64_t>(bytes[at] >> 1) << shift;
  }
  PtPacket made = packet(PtKind::kCycles, bytes, at);
  made.payload = value;
  return made;
}

PtPacket psb(std::span<const unsigned char> bytes) {
  const size_t there = bytes.size() < kPsbBytes ? bytes.size() : kPsbBytes;
  if (memcmp(bytes.data(), kPsb, there) != 0) return unknown();
  return packet(PtKind::kPsb, bytes, kPsbBytes);
}

PtPacket time_alignment(std::span<const unsigned char> bytes) {
  PtPacket made = packet(PtKind::kTma, bytes, 7);
  if (made.kind != PtKind::kTma) return made;
  made.payload = little_endian(bytes.data() + 2, 2);
  made.fast_counter = bytes[5] | (bytes[6] & 1u) << 8;
  return made;
}

// Packets that begin with 02.
PtPacket extended(std::span<const unsigned char> bytes, PtBlockState& block) {
  if (bytes.size() < 2) return {};
  const unsigned char second = bytes[1];
  switch (second) {
    case 0x82: {
      const PtPacket made = psb(bytes);
      if (made.kind == PtKind::kPsb) block = {};
      return made;
    }
    case 0x23: block = {}; return packet(PtKind::kPsbEnd, bytes, 2);
    case 0xa3: return with_value(PtKind::kTnt, bytes, 8, 6);
    case 0x43: return with_value(PtKind::kPip, bytes, 8, 6);
    case 0x83: return packet(PtKind::kTraceStop, bytes, 2);
    case 0x03: return with_value(PtKind::kCoreRatio, bytes, 4, 2);
    case 0x73: return time_alignment(bytes);
    case 0xc8: return with_value(PtKind::kVmcs, bytes, 7, 5);
    case 0xf3: block = {}; return packet(PtKind::kOverflow, bytes, 2);
    case 0xc3:
      if (bytes.size() < 3) return {};
      return bytes[2] == 0x88 ? with_value(PtKind::kMaintenance, bytes, 11, 8) : unknown();
    case 0x62:
    case 0xe2: return packet(PtKind::kExecStop, bytes, 2);
    case 0xc2: return with_value(PtKind::kMwait, bytes, 10, 8);
    case 0x22: return with_value(PtKind::kPowerEntry, bytes, 4, 2);
    case 0xa2: return with_value(PtKind::kPowerExit, bytes, 7, 5);
    case 0x63: {
      PtPacket made = with_value(PtKind::kBlockBegin, bytes, 3, 1);
      if (made.kind == PtKind::kBlockBegin) block.item_bytes = (made.payload & 0x80) != 0 ? 4 : 8;
      return made;
    }
    case 0x33:
    case 0xb3: {
      block = {};
      PtPacket made = packet(PtKind::kBlockEnd, bytes, 2);
      made.has_ip = second == 0xb3;
      return made;
    }
    case 0x13: return with_value(PtKind::kControlFlow, bytes, 4, 2);
    case 0x53: return with_value(PtKind::kEventData, bytes, 11, 8);
    default: break;
  }
  if ((second & 0x1f) == 0x12) {  // bits 5 and 6: 4 or 8 bytes; bit 7: an address follows
    const unsigned size = second >> 5 & 3;
    if (size > 1) return unknown();
    PtPacket made = with_value(PtKind::kPtWrite, bytes, size == 0 ? 6 : 10, size == 0 ? 4 : 8);
    made.has_ip = (second & 0x80) != 0;
    return made;
  }
  return unknown();
}

}  // namespace

PtPacket next_packet(std::span<const unsigned char> bytes, PtBlockState& block) {
  if (bytes.empty()) return {};
  const unsigned char first = bytes[0];
  if (first == 0x00) return packet(PtKind::kPad, bytes, 1);
  if (first == 0x02) return extended(bytes, block);
  if (block.item_bytes != 0 && (first & 7) == 4) {
    const size_t length = block.item_bytes;
    return with_value(PtKind::kBlockItem, bytes, 1 + length, length);
  }
  if ((first & 1) == 0) return packet(PtKind::kTnt, bytes, 1);
  if ((first & 3) == 3) return cycles(bytes);
  switch (first) {
    case 0x19: return with_value(PtKind::kTsc, bytes, 8, 7);
    case 0x59: return with_value(PtKind::kMtc, bytes, 2, 1);
    case 0x99: return with_value(PtKind::kMode, bytes, 2, 1);
    default: break;
  }
  switch (first & 0x1f) {
    case 0x0d: return address_packet(PtKind::kTip, bytes);
    case 0x11: return address_packet(PtKind::kTipEnable, bytes);
    case 0x01: return address_packet(PtKind::kTipDisable, bytes);
    case 0x1d: return address_packet(PtKind::kFup, bytes);
    default: return unknown();
  }
}

size_t find_psb(std::span<const unsigned char> bytes) {
  const unsigned char* const begin = bytes.data();
  const unsigned char* const end = begin + bytes.size();
  const unsigned char* at = begin;
  while (static_cast<size_t>(end - at) >= kPsbBytes) {
    at = static_cast<const unsigned char*>(memchr(at, 0x02, static_cast<size_t>(end - at)));
    if (at == nullptr || static_cast<size_t>(end - at) < kPsbBytes) break;
    if (memcmp(at, kPsb, kPsbBytes) == 0) return static_cast<size_t>(at - begin);
    ++at;
  }
  return bytes.size();
}

bool PtLastIp::update(const PtPacket& packet) {
  constexpr uint64_t k16 = 0xffff, k32 = 0xffffffff, k48 = 0xffffffffffff;
  switch (packet.ip_form) {
    case 1: ip_ = (ip_ & ~k16) | packet.payload; return true;
    case 2: ip_ = (ip_ & ~k32) | packet.payload; return true;
    case 3: ip_ = (packet.payload & uint64_t{1} << 47) != 0 ? packet.payload | ~k48 : packet.payload; return true;
    case 4: ip_ = (ip_ & ~k48) | packet.payload; return true;
    case 6: ip_ = packet.payload; return true;
    default: return false;
  }
}

}  // namespace memlens::importing
