// The switch of proactive congestion notification (PCN) in P4_16 for the v1model architecture.
//
// Source: Kang et al. (2021), Proactive Congestion Avoidance for Distributed Deep Learning, Sensors 21(1), 174.
// Section, figure and equation numbers in the comments are those of the paper.
//
// Ingress forwards by destination address, updates the announcements of the egress port, and determines the marking
// threshold for the packet. Egress compares the queue length at enqueue with this threshold and marks the packet. The
// paper counts the announcements of a port. Here, a register with an entry per connection lets only the burst's own
// segments withdraw an announcement, and a repeated announcement counts once.

#include <core.p4>
#include <v1model.p4>

// Protocol numbers of the IANA.
const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_TCP = 6;
const bit<8> PROTOCOL_UDP = 17;

// ECN codepoints (RFC 3168, section 5).
const bit<2> NOT_ECT = 0;
const bit<2> CE = 3;

// Unit of the announced threshold, in packets (section 3.1).
const bit<19> STEP = 5;

// Largest frame of a PCN-START without checksum sequence, in bytes (section 4.4: a packet of approximately 64 bytes
// without payload). The limit excludes larger packets whose DSCP has the bit of the START flag, as EF has.
const bit<32> LARGEST_START_BYTES = 64;

// Marking threshold without announcements, in packets: the paper's initial threshold (section 3.3, equation 1).
const bit<19> INITIAL = 40;

// Age at which announcements expire, in microseconds. The paper has no expiry: without it, a lost burst would leave the
// threshold low. Calibration: three times the sender's timeout.
const bit<48> EXPIRE_US = 600000;

// Number of egress ports: egress_spec has nine bits.
const bit<32> PORTS = 512;

// Number of entries for connections. Calibration: two of 100 announced connections share an entry in 7 % of cases.
const bit<32> CONNECTIONS = 65536;

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

// IPv4. The type of service is that of figure 7: START flag, ACK flag, four bits with a fifth of the threshold, ECN.
header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<1> is_start;
    bit<1> is_ack;
    bit<4> fifths;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

// The ports, with which TCP and UDP headers begin.
header ports_t {
    bit<16> source;
    bit<16> destination;
}

// The TCP header without the ports.
header tcp_t {
    bit<32> sequence;
    bit<32> acknowledgement;
    bit<4> data_offset;
    bit<12> flags;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    ports_t ports;
    tcp_t tcp;
}

struct metadata_t {
    bit<19> initial;    // threshold without announcements, in packets
    bit<48> expire_us;  // age at which announcements expire
    bit<19> threshold;  // threshold for this packet, in packets
    bit<1> is_marked;   // 1 if egress has marked this packet
}

parser PcnParser(
    packet_in packet,
    out headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata
) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    // Ports are at a fixed offset only without IPv4 options, and only the first fragment has them.
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4w5, 13w0, PROTOCOL_TCP): parse_tcp;
            (4w5, 13w0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_tcp {
        packet.extract(hdr.ports);
        packet.extract(hdr.tcp);
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.ports);
        transition accept;
    }
}

control PcnVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control PcnIngress(
    inout headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata
) {
    // Section 3.2, "Applying the PCN threshold": the lowest threshold among the announcements of a port, in packets.
    // The workers of one job announce equal thresholds (section 3.1). For different thresholds, section 5.3 defines no
    // rule.
    register<bit<19>>(PORTS) port_threshold;

    // Section 3.2: the counter of a port. The announced threshold applies while the counter is not zero.
    register<bit<32>>(PORTS) port_bursts;

    // Times of the first and of the latest announcement that the counter of a port includes, in microseconds. An older
    // announcement of a connection does not count. All announcements of a port expire expire_us after the latest one.
    // The paper has no expiry.
    register<bit<48>>(PORTS) port_first_us;
    register<bit<48>>(PORTS) port_latest_us;

    // Time of a connection's announcement, in microseconds; 0 if the connection has none, or its burst has begun. The
    // paper has no such register: it decreases the counter "every time the burst DDL traffic arrives" (section 3.2).
    // With the register, only the first segment of an announced burst decreases the counter.
    register<bit<48>>(CONNECTIONS) connection_us;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action to_port(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    // Sets the threshold without announcements, in packets, and the age at which announcements expire.
    action set_queue(bit<19> initial, bit<48> expire_us) {
        meta.initial = initial;
        meta.expire_us = expire_us;
    }

    // Forwarding by destination address (section 2.3: match-action tables set the outgoing port).
    table forward {
        key = {
            hdr.ethernet.destination: exact;
        }
        actions = {
            to_port;
            drop;
        }
        size = 1024;
        default_action = drop();
    }

    // Initial threshold by egress port (section 3.3, equation 1: the threshold depends on the port's rate).
    table queue {
        key = {
            standard_metadata.egress_spec: exact;
        }
        actions = {
            set_queue;
        }
        size = 512;
        default_action = set_queue(INITIAL, EXPIRE_US);
    }

    apply {
        bit<32> port;
        bit<32> connection = 0;
        bit<48> now_us = standard_metadata.ingress_global_timestamp;
        bit<48> announced_us = 0;
        bit<48> first_us = 0;
        bit<48> latest_us = 0;
        bit<32> bursts = 0;
        bit<19> threshold = 0;
        bit<19> announced = 0;
        bit<16> header_bytes = 0;
        bool is_counted = false;

        meta.is_marked = 0;
        forward.apply();
        queue.apply();
        port = (bit<32>) standard_metadata.egress_spec;

        // BMv2 ignores @atomic, and has one ingress thread. Therefore, all registers are accessed at ingress.
        @atomic {
            port_bursts.read(bursts, port);
            port_threshold.read(threshold, port);
            port_latest_us.read(latest_us, port);
            if (bursts != 0 && now_us >= latest_us + meta.expire_us) {
                bursts = 0;
                port_bursts.write(port, bursts);
            }

            if (hdr.ports.isValid()) {
                hash(
                    connection,
                    HashAlgorithm.crc32,
                    32w0,
                    { hdr.ipv4.source, hdr.ipv4.destination, hdr.ports.source, hdr.ports.destination },
                    CONNECTIONS
                );
                connection_us.read(announced_us, connection);
                port_first_us.read(first_us, port);
                is_counted = bursts != 0 && announced_us != 0 && announced_us >= first_us;

                if (
                    hdr.ipv4.protocol == PROTOCOL_UDP
                    && hdr.ipv4.is_start == 1
                    && hdr.ipv4.is_ack == 0
                    && hdr.ipv4.ecn == NOT_ECT
                    && standard_metadata.packet_length <= LARGEST_START_BYTES
                ) {
                    // Section 3.2, "Applying the PCN threshold" (T0 and T1 in figure 8): PCN-START.
                    announced = (bit<19>) hdr.ipv4.fifths * STEP;
                    if (bursts == 0) {
                        threshold = announced;
                        port_first_us.write(port, now_us);
                    } else if (announced < threshold) {
                        threshold = announced;
                    }
                    if (!is_counted) {
                        bursts = bursts + 1;
                    }
                    port_threshold.write(port, threshold);
                    port_bursts.write(port, bursts);
                    port_latest_us.write(port, now_us);
                    connection_us.write(connection, now_us);
                } else if (hdr.tcp.isValid() && is_counted) {
                    // Section 3.2, "Threshold recovery" (T5 in figure 8): the first segment with payload.
                    header_bytes = ((bit<16>) hdr.ipv4.ihl + (bit<16>) hdr.tcp.data_offset) << 2;
                    if (hdr.ipv4.total_length > header_bytes) {
                        bursts = bursts - 1;
                        port_bursts.write(port, bursts);
                        connection_us.write(connection, 48w0);
                    }
                }
            }
        }

        // Section 3.2: a burst can lower the threshold, not raise it.
        meta.threshold = meta.initial;
        if (bursts != 0 && threshold < meta.initial) {
            meta.threshold = threshold;
        }
    }
}

control PcnEgress(
    inout headers_t hdr,
    inout metadata_t meta,
    inout standard_metadata_t standard_metadata
) {
    action mark() {
        hdr.ipv4.ecn = CE;
        meta.is_marked = 1;
    }

    apply {
        // Section 3.2, "Queue reservation" (T2 in figure 8): packets that find the threshold reached are marked. The
        // queue length enq_qdepth does not include the packet itself. Packets with IPv4 options are not marked, because
        // the checksum is computed without options.
        if (
            hdr.ipv4.isValid()
            && hdr.ipv4.ihl == 5
            && hdr.ipv4.ecn != NOT_ECT
            && hdr.ipv4.ecn != CE
            && standard_metadata.enq_qdepth >= meta.threshold
        ) {
            mark();
        }
    }
}

control PcnComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            meta.is_marked == 1,
            {
                hdr.ipv4.version,
                hdr.ipv4.ihl,
                hdr.ipv4.is_start,
                hdr.ipv4.is_ack,
                hdr.ipv4.fifths,
                hdr.ipv4.ecn,
                hdr.ipv4.total_length,
                hdr.ipv4.identification,
                hdr.ipv4.flags,
                hdr.ipv4.fragment_offset,
                hdr.ipv4.ttl,
                hdr.ipv4.protocol,
                hdr.ipv4.source,
                hdr.ipv4.destination
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16
        );
    }
}

control PcnDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
        packet.emit(hdr.tcp);
    }
}

V1Switch(
    PcnParser(),
    PcnVerifyChecksum(),
    PcnIngress(),
    PcnEgress(),
    PcnComputeChecksum(),
    PcnDeparser()
) main;
