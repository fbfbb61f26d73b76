// Our packets of Processor Trace beside Intel's own library (libipt): streams made by its encoder, and the same streams
// damaged, must be cut into the same packets with the same values, up to where libipt knows no packet.
#include <intel-pt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "importing/pt_packets.h"

using namespace memlens::importing;

namespace {

std::mt19937_64 source(5);

pt_packet random_packet() {
  static constexpr pt_packet_type kTypes[] = {
      ppt_pad,  ppt_psb, ppt_psbend, ppt_fup,   ppt_tip,  ppt_tip_pge, ppt_tip_pgd, ppt_tnt_8, ppt_tnt_64,
      ppt_mode, ppt_pip, ppt_vmcs,   ppt_cbr,   ppt_tsc,  ppt_tma,     ppt_mtc,     ppt_cyc,   ppt_stop,
      ppt_ovf,  ppt_mnt, ppt_exstop, ppt_mwait, ppt_pwre, ppt_pwrx,    ppt_ptw};
  pt_packet packet{};
  packet.type = kTypes[source() % std::size(kTypes)];
  const uint64_t value = source() >> source() % 64;
  static constexpr pt_ip_compression kForms[] = {pt_ipc_suppressed, pt_ipc_update_16, pt_ipc_update_32,
                                                 pt_ipc_sext_48,    pt_ipc_update_48, pt_ipc_full};
  switch (packet.type) {
    case ppt_fup:
    case ppt_tip:
    case ppt_tip_pge:
    case ppt_tip_pgd:
      packet.payload.ip.ipc = kForms[source() % std::size(kForms)];
      packet.payload.ip.ip = value;
      break;
    case ppt_tnt_8:
      packet.payload.tnt.bit_size = static_cast<uint8_t>(1 + source() % 6);
      packet.payload.tnt.payload = value & 1;
      break;
    case ppt_tnt_64:
      packet.payload.tnt.bit_size = static_cast<uint8_t>(1 + source() % 47);
      packet.payload.tnt.payload = value & 1;
      break;
    case ppt_pip: packet.payload.pip.cr3 = value & 0xfffffffffffe0ull; break;
    case ppt_vmcs: packet.payload.vmcs.base = value & 0xffffffffff000ull; break;
    case ppt_cbr: packet.payload.cbr.ratio = static_cast<uint8_t>(value); break;
    case ppt_tsc: packet.payload.tsc.tsc = value & 0xffffffffffffffull; break;
    case ppt_tma:
      packet.payload.tma.ctc = static_cast<uint16_t>(value);
      packet.payload.tma.fc = static_cast<uint16_t>(source() % 512);
      break;
    case ppt_mtc: packet.payload.mtc.ctc = static_cast<uint8_t>(value); break;
    case ppt_cyc: packet.payload.cyc.value = value >> 8; break;
    case ppt_mnt: packet.payload.mnt.payload = value; break;
    case ppt_exstop: packet.payload.exstop.ip = source() & 1; break;
    case ppt_mwait:
      packet.payload.mwait.hints = static_cast<uint32_t>(value);
      packet.payload.mwait.ext = source() & 1;
      break;
    case ppt_pwre: packet.payload.pwre.state = static_cast<uint8_t>(source() % 8); break;
    case ppt_pwrx: packet.payload.pwrx.last = static_cast<uint8_t>(source() % 8); break;
    case ppt_ptw:
      packet.payload.ptw.plc = static_cast<uint8_t>(source() % 2);
      packet.payload.ptw.payload = packet.payload.ptw.plc == 0 ? value & 0xffffffff : value;
      packet.payload.ptw.ip = source() & 1;
      break;
    default: break;
  }
  return packet;
}

PtKind kind_of(pt_packet_type type) {
  static const std::map<pt_packet_type, PtKind> kKinds = {{ppt_pad, PtKind::kPad},
                                                          {ppt_psb, PtKind::kPsb},
                                                          {ppt_psbend, PtKind::kPsbEnd},
                                                          {ppt_fup, PtKind::kFup},
                                                          {ppt_tip, PtKind::kTip},
                                                          {ppt_tip_pge, PtKind::kTipEnable},
                                                          {ppt_tip_pgd, PtKind::kTipDisable},
                                                          {ppt_tnt_8, PtKind::kTnt},
                                                          {ppt_tnt_64, PtKind::kTnt},
                                                          {ppt_mode, PtKind::kMode},
                                                          {ppt_pip, PtKind::kPip},
                                                          {ppt_vmcs, PtKind::kVmcs},
                                                          {ppt_cbr, PtKind::kCoreRatio},
                                                          {ppt_tsc, PtKind::kTsc},
                                                          {ppt_tma, PtKind::kTma},
                                                          {ppt_mtc, PtKind::kMtc},
                                                          {ppt_cyc, PtKind::kCycles},
                                                          {ppt_stop, PtKind::kTraceStop},
                                                          {ppt_ovf, PtKind::kOverflow},
                                                          {ppt_mnt, PtKind::kMaintenance},
                                                          {ppt_exstop, PtKind::kExecStop},
                                                          {ppt_mwait, PtKind::kMwait},
                                                          {ppt_pwre, PtKind::kPowerEntry},
                                                          {ppt_pwrx, PtKind::kPowerExit},
                                                          {ppt_ptw, PtKind::kPtWrite}};
  return kKinds.at(type);
}

// Whether the values that an import uses are the same.
bool same_value(const pt_packet& theirs, const PtPacket& ours) {
  switch (theirs.type) {
    case ppt_fup:
    case ppt_tip:
    case ppt_tip_pge:
    case ppt_tip_pgd:
      return theirs.payload.ip.ipc == pt_ipc_suppressed
                 ? ours.ip_form == 0
                 : theirs.payload.ip.ip == ours.payload && static_cast<int>(theirs.payload.ip.ipc) == ours.ip_form;
    case ppt_tsc: return theirs.payload.tsc.tsc == ours.payload;
    case ppt_tma: return theirs.payload.tma.ctc == ours.payload && theirs.payload.tma.fc == ours.fast_counter;
    case ppt_mtc: return theirs.payload.mtc.ctc == ours.payload;
    case ppt_cyc: return theirs.payload.cyc.value == ours.payload;
    case ppt_ptw: return theirs.payload.ptw.payload == ours.payload && theirs.payload.ptw.ip == ours.has_ip;
    default: return true;
  }
}

int compare(std::vector<uint8_t> stream, uint64_t& compared) {
  if (stream.empty()) return 0;  // libipt refuses it
  pt_config config;
  pt_config_init(&config);
  config.begin = stream.data();
  config.end = stream.data() + stream.size();
  pt_packet_decoder* decoder = pt_pkt_alloc_decoder(&config);
  if (decoder == nullptr) return 1;
  pt_pkt_sync_set(decoder, 0);
  PtBlockState block;
  size_t at = 0;
  int failed = 0;
  while (at < stream.size()) {
    pt_packet theirs{};
    const int status = pt_pkt_next(decoder, &theirs, sizeof theirs);
    const PtPacket ours = next_packet({stream.data() + at, stream.size() - at}, block);
    if (status == -pte_eos) {  // the end inside a packet, of which we may know already that it is none
      failed += ours.kind != PtKind::kShort && ours.kind != PtKind::kUnknown;
      break;
    }
    // Newer packets that this libipt does not know, and reserved bits that it refuses, end a comparison.
    if (status < 0) break;
    ++compared;
    failed += ours.kind != kind_of(theirs.type) || ours.bytes != theirs.size || !same_value(theirs, ours);
    if (failed) {
      fprintf(stderr, "at %zu: libipt type %d of %d bytes, ours kind %d of %d bytes\n", at, theirs.type, theirs.size,
              static_cast<int>(ours.kind), ours.bytes);
      break;
    }
    at += ours.bytes;
  }
  pt_pkt_free_decoder(decoder);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 2000;
  int failed = 0;
  uint64_t compared = 0, encoded = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint8_t> stream(4096);
    pt_config config;
    pt_config_init(&config);
    config.begin = stream.data();
    config.end = stream.data() + stream.size();
    pt_encoder* encoder = pt_alloc_encoder(&config);
    size_t length = 0;
    for (int i = 0; i < 60; ++i) {
      const pt_packet packet = random_packet();
      const int size = pt_enc_next(encoder, &packet);
      if (size < 0) continue;
      length += static_cast<size_t>(size);
      ++encoded;
    }
    pt_free_encoder(encoder);
    stream.resize(length);
    uint64_t sound = 0;
    failed += compare(stream, sound);
    compared += sound;
    if (round % 2 && !stream.empty()) {
      for (uint64_t i = 1 + source() % 3; i > 0; --i) stream[source() % stream.size()] = static_cast<uint8_t>(source());
      stream.resize(source() % (stream.size() + 1));
      failed += compare(stream, compared);
    }
  }
  printf("%d rounds, %llu packets made by libipt, %llu compared, %d failures\n", rounds,
         static_cast<unsigned long long>(encoded), static_cast<unsigned long long>(compared), failed);
  return failed == 0 && compared >= encoded ? 0 : 1;
}
