// Runs a scenario of gradtide in ns-3: a network of hosts, switches and links, the TCP flows of a list, and a training job
// with a ring all-reduce.
//
//     host 0 ──┐                      ┌── host 2       at both ends of every link:
//              ├ switch ── switch ────┤                queue discipline ─ device queue of one packet ─ wire
//     host 1 ──┘                      └── host 3
//
// Its results are compared with those of gradtide's packet engine for the same scenario. It links against ns-3.37
// (GPL-2.0), whose models process all packets; this file only builds the network, starts the flows and records the times
// of events. validation/ns3/README.md describes the settings and the comparisons.
//
// Tables that it reads from the folder --in:
//
//     links.csv    from,to,rate_bps,delay_ns                 a row per direction; the two rows of a link are adjacent
//     flows.csv    start_ns,src,dst,bytes,tos,there,back     there, back: the links of both routes, by row of links.csv
//     layers.csv   forward_ns,backward_ns,bucket             from the input side; bucket -1: the layer sends nothing
//     parts.csv    bucket,step,rank,bytes                    bytes that a rank sends to the next rank in a step
//     ring.csv     host,there,back                           a row per rank, with the routes to and from the next rank
//
// Tables that it writes to the folder --out: fct.csv, iters.csv, allreduce.csv and summary.json; with --trace also
// trace.csv, with a row for every packet on every link.
//
// It supports at most one job, and no other collective.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint16_t FLOW_PORT = 1024;
constexpr uint16_t JOB_PORT = 2048;
// Minimum of bytes written to a socket at once, rounded to whole segments: ns-3 would send a remainder as a short segment.
constexpr uint64_t LEAST_WRITE_BYTES = 100'000;

struct Settings
{
    std::string in = ".";
    std::string out = ".";
    uint32_t hosts = 0;
    uint64_t duration_ns = 0; // no iteration starts after this time; 0: no limit
    uint64_t stop_ns = 0;     // time at which the simulation stops
    uint64_t report_ns = 0;   // simulated time that corresponds to a progress of 1

    std::string tcp = "TcpNewReno";
    bool ecn = false;
    double dctcp_gain = 0.0625;
    uint32_t segment_bytes = 1380;
    uint32_t initial_window = 10;
    uint32_t window_bytes = 32 << 20;
    uint64_t min_rto_ns = 0;
    uint64_t initial_rtt_ns = 0;
    uint64_t connect_timeout_ns = 0;
    uint64_t delayed_ack_ns = 0;

    std::string queue = "pfifo_fast";
    uint32_t buffer_packets = 1000;
    uint32_t mark_packets = 0; // marking threshold of the queue "ecn"

    uint32_t job_tos = 0x10;
    bool barrier = true;
    bool by_priority = false;
    uint32_t iterations = 0; // 0: no limit except `duration_ns`

    bool trace = false;
    int64_t trace_from_ns = 0;
    int64_t trace_to_ns = std::numeric_limits<int64_t>::max();
};

Settings g_settings;

int64_t
Now()
{
    return Simulator::Now().GetNanoSeconds();
}

// Returns the number of bytes that are written to a socket at once, a multiple of the segment size.
uint64_t
WriteBytes()
{
    const uint64_t segment = g_settings.segment_bytes;
    return (LEAST_WRITE_BYTES + segment - 1) / segment * segment;
}

// --- counters ------------------------------------------------------------------------------------------------------------

uint64_t g_packet_hops = 0; // transmissions of a packet (data, ACK or control) on a link
uint64_t g_hop_bytes = 0;   // bytes of these packets, with IP, TCP and the two bytes of PPP
uint64_t g_drops = 0;
uint64_t g_marks = 0;

std::ofstream g_trace;

// `link` has the form FROM>TO, with the numbers of two nodes.
void
OnTransmit(std::string link, Ptr<const Packet> packet)
{
    // Progress, about once per second.
    if (++g_packet_hops % 65536 == 0 && g_settings.report_ns > 0)
    {
        std::cout << double(Now()) / g_settings.report_ns << std::endl;
    }
    g_hop_bytes += packet->GetSize();
    if (g_trace.is_open() && Now() >= g_settings.trace_from_ns && Now() < g_settings.trace_to_ns)
    {
        Ptr<Packet> copy = packet->Copy();
        PppHeader ppp;
        Ipv4Header ip;
        TcpHeader tcp;
        copy->RemoveHeader(ppp);
        copy->RemoveHeader(ip);
        copy->RemoveHeader(tcp);
        g_trace << Now() << ',' << link << ',' << packet->GetSize() << ',' << TcpHeader::FlagsToString(tcp.GetFlags(), " ")
                << ',' << tcp.GetSourcePort() << ',' << tcp.GetDestinationPort() << ',' << tcp.GetSequenceNumber() << ','
                << tcp.GetAckNumber() << ',' << copy->GetSize() << ',' << uint32_t(ip.GetTos()) << '\n';
    }
}

void
OnDrop(Ptr<const QueueDiscItem>)
{
    ++g_drops;
}

void
OnMark(Ptr<const QueueDiscItem>, const char*)
{
    ++g_marks;
}

// --- tables ----------------------------------------------------------------------------------------------------------------

using Row = std::map<std::string, std::string>;

// Returns the rows of a CSV file without quotes; no rows if the file does not exist.
std::vector<Row>
ReadTable(const std::string& name)
{
    std::vector<Row> rows;
    std::ifstream file(g_settings.in + "/" + name);
    std::string line;
    std::string word;
    std::getline(file, line);
    std::vector<std::string> columns;
    for (std::istringstream words(line); std::getline(words, word, ',');)
    {
        columns.push_back(word);
    }
    while (std::getline(file, line))
    {
        Row row;
        std::istringstream words(line);
        for (const std::string& column : columns)
        {
            NS_ABORT_MSG_UNLESS(std::getline(words, word, ','), name << ": a line is too short: " << line);
            row[column] = word;
        }
        rows.push_back(row);
    }
    return rows;
}

int64_t
Number(const Row& row, const std::string& column)
{
    return std::stoll(row.at(column));
}

using Way = std::vector<uint32_t>;

Way
ReadWay(const Row& row, const std::string& column)
{
    Way way;
    uint32_t link = 0;
    for (std::istringstream words(row.at(column)); words >> link;)
    {
        way.push_back(link);
    }
    return way;
}

// --- the network -----------------------------------------------------------------------------------------------------------

// A directed link: its first node, the interface there, and the address at its other end.
struct Link
{
    uint32_t from = 0;
    uint32_t interface = 0;
    Ipv4Address to;
};

std::vector<Link> g_links;

// Key of a connection: address and port of the node that opened it. The port of the other node is one of the constants.
using Opener = std::pair<uint32_t, uint16_t>;

// For each connection, the next link at each node of the route of its opener, and of the route back.
std::map<Opener, std::pair<std::map<uint32_t, uint32_t>, std::map<uint32_t, uint32_t>>> g_ways;

void
SetWays(Ipv4Address address, uint16_t port, const Way& there, const Way& back)
{
    auto& ways = g_ways[{address.Get(), port}];
    for (uint32_t link : there)
    {
        ways.first[g_links[link].from] = link;
    }
    for (uint32_t link : back)
    {
        ways.second[g_links[link].from] = link;
    }
}

// Static routing: every packet takes the route of its connection. A host has only one link.
class Ways : public Ipv4RoutingProtocol
{
  public:
    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header& header, Ptr<NetDevice>, Socket::SocketErrno& error) override
    {
        error = Socket::ERROR_NOTERROR;
        return Route(1, header.GetDestination());
    }

    bool RouteInput(Ptr<const Packet> packet,
                    const Ipv4Header& header,
                    Ptr<const NetDevice> device,
                    UnicastForwardCallback forward,
                    MulticastForwardCallback,
                    LocalDeliverCallback deliver,
                    ErrorCallback) override
    {
        const uint32_t from = m_ipv4->GetInterfaceForDevice(device);
        if (m_ipv4->IsDestinationAddress(header.GetDestination(), from))
        {
            deliver(packet, header, from);
            return true;
        }
        TcpHeader tcp;
        packet->PeekHeader(tcp);
        const bool there = tcp.GetDestinationPort() <= JOB_PORT;
        const auto& ways = there ? g_ways.at({header.GetSource().Get(), tcp.GetSourcePort()}).first
                                 : g_ways.at({header.GetDestination().Get(), tcp.GetDestinationPort()}).second;
        const Link& link = g_links[ways.at(m_ipv4->GetObject<Node>()->GetId())];
        forward(Route(link.interface, header.GetDestination()), packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override
    {
    }

    void NotifyInterfaceDown(uint32_t) override
    {
    }

    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void SetIpv4(Ptr<Ipv4> ipv4) override
    {
        m_ipv4 = ipv4;
    }

    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override
    {
    }

  private:
    Ptr<Ipv4Route> Route(uint32_t interface, Ipv4Address destination) const
    {
        Ptr<Ipv4Route> route = Create<Ipv4Route>();
        route->SetDestination(destination);
        route->SetSource(m_ipv4->GetAddress(interface, 0).GetLocal());
        route->SetGateway(Ipv4Address::GetZero());
        route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        return route;
    }

    Ptr<Ipv4> m_ipv4;
};

class WaysHelper : public Ipv4RoutingHelper
{
  public:
    WaysHelper* Copy() const override
    {
        return new WaysHelper(*this);
    }

    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override
    {
        return CreateObject<Ways>();
    }
};

struct Network
{
    NodeContainer nodes; // hosts first
    std::vector<Ipv4Address> address;
};

void
SetTcp()
{
    const Settings& s = g_settings;
    const auto time = [](uint64_t ns) { return TimeValue(NanoSeconds(ns)); };
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TypeId::LookupByName("ns3::" + s.tcp)));
    Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue(s.ecn ? "On" : "Off"));
    Config::SetDefault("ns3::TcpDctcp::DctcpShiftG", DoubleValue(s.dctcp_gain));
    // HyStart, an early exit from slow start, is disabled, because it is not part of RFC 9438.
    Config::SetDefault("ns3::TcpCubic::HyStart", BooleanValue(false));
    // The default of ns-3.37 is proportional rate reduction (RFC 6937).
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", TypeIdValue(TypeId::LookupByName("ns3::TcpClassicRecovery")));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(NanoSeconds(1)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(s.segment_bytes));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(s.initial_window));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(s.window_bytes));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(s.window_bytes));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", time(s.min_rto_ns));
    Config::SetDefault("ns3::RttEstimator::InitialEstimation", time(s.initial_rtt_ns));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", time(s.connect_timeout_ns));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", time(s.delayed_ack_ns));
    // Twice and 2.5 times the estimated round-trip time, as in basic-sim.
    Config::SetDefault("ns3::TcpSocket::PersistTimeout", time(2 * s.initial_rtt_ns));
    Config::SetDefault("ns3::TcpSocketBase::MaxSegLifetime", DoubleValue(2.5 * s.initial_rtt_ns / 1e9));
}

// gradtide's queue "ecn", which marks ECN-capable packets above a threshold and leaves all others unchanged. RED in ns-3
// would drop the others: acknowledgements of NewReno and CUBIC, SYNs, and retransmissions.
class MarkingQueueDisc : public QueueDisc
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("gradtide::MarkingQueueDisc")
                               .SetParent<QueueDisc>()
                               .AddConstructor<MarkingQueueDisc>()
                               .AddAttribute("MaxSize",
                                             "The most packets that it holds.",
                                             QueueSizeValue(QueueSize("1000p")),
                                             MakeQueueSizeAccessor(&QueueDisc::SetMaxSize, &QueueDisc::GetMaxSize),
                                             MakeQueueSizeChecker());
        return id;
    }

    MarkingQueueDisc()
        : QueueDisc(QueueDiscSizePolicy::SINGLE_INTERNAL_QUEUE)
    {
    }

  private:
    bool DoEnqueue(Ptr<QueueDiscItem> item) override
    {
        if (GetCurrentSize() + item > GetMaxSize())
        {
            DropBeforeEnqueue(item, "full");
            return false;
        }
        if (GetCurrentSize().GetValue() >= g_settings.mark_packets)
        {
            Mark(item, "threshold");
        }
        return GetInternalQueue(0)->Enqueue(item);
    }

    Ptr<QueueDiscItem> DoDequeue() override
    {
        return GetInternalQueue(0)->Dequeue();
    }

    Ptr<const QueueDiscItem> DoPeek() override
    {
        return GetInternalQueue(0)->Peek();
    }

    bool CheckConfig() override
    {
        AddInternalQueue(CreateObjectWithAttributes<DropTailQueue<QueueDiscItem>>("MaxSize", QueueSizeValue(GetMaxSize())));
        return true;
    }

    void InitializeParams() override
    {
    }
};

NS_OBJECT_ENSURE_REGISTERED(MarkingQueueDisc);

TrafficControlHelper
QueueDiscOfPorts()
{
    TrafficControlHelper control;
    const std::string capacity = std::to_string(g_settings.buffer_packets) + "p";
    if (g_settings.queue == "pfifo_fast")
    {
        control.SetRootQueueDisc("ns3::PfifoFastQueueDisc", "MaxSize", StringValue(capacity));
    }
    else if (g_settings.queue == "fifo")
    {
        control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue(capacity));
    }
    else
    {
        control.SetRootQueueDisc("gradtide::MarkingQueueDisc", "MaxSize", StringValue(capacity));
    }
    return control;
}

Network
BuildNetwork()
{
    const std::vector<Row> rows = ReadTable("links.csv");
    NS_ABORT_MSG_IF(rows.empty() || rows.size() % 2, "links.csv: links come in pairs");
    uint32_t nodes = 0;
    for (const Row& row : rows)
    {
        nodes = std::max<uint32_t>(nodes, 1 + Number(row, "from"));
    }
    Network network;
    network.nodes.Create(nodes);
    network.address.resize(g_settings.hosts);
    InternetStackHelper internet;
    internet.SetIpv6StackInstall(false);
    internet.SetRoutingHelper(WaysHelper());
    internet.Install(network.nodes);

    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
    for (size_t i = 0; i < rows.size(); i += 2)
    {
        const uint32_t ends[] = {uint32_t(Number(rows[i], "from")), uint32_t(Number(rows[i], "to"))};
        const std::string rate = rows[i].at("rate_bps") + "bps";
        const Time delay = NanoSeconds(Number(rows[i], "delay_ns"));
        PointToPointHelper link;
        link.SetDeviceAttribute("DataRate", StringValue(rate));
        // A segment of any size is one packet. IP and TCP headers have at most 60 bytes each.
        link.SetDeviceAttribute("Mtu", UintegerValue(std::clamp(g_settings.segment_bytes + 120U, 1500U, 65535U)));
        link.SetChannelAttribute("Delay", TimeValue(delay));
        link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("1p"));
        NetDeviceContainer devices = link.Install(network.nodes.Get(ends[0]), network.nodes.Get(ends[1]));
        QueueDiscContainer qdiscs = QueueDiscOfPorts().Install(devices);
        Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
        addresses.NewNetwork();
        for (uint32_t end = 0; end < 2; ++end)
        {
            g_links.push_back({ends[end], interfaces.Get(end).second, interfaces.GetAddress(1 - end)});
            if (ends[end] < g_settings.hosts)
            {
                network.address[ends[end]] = interfaces.GetAddress(end);
            }
            const std::string way = std::to_string(ends[end]) + ">" + std::to_string(ends[1 - end]);
            devices.Get(end)->TraceConnectWithoutContext("PhyTxBegin", MakeBoundCallback(&OnTransmit, way));
            qdiscs.Get(end)->TraceConnectWithoutContext("Drop", MakeCallback(&OnDrop));
            qdiscs.Get(end)->TraceConnectWithoutContext("Mark", MakeCallback(&OnMark));
        }
    }
    return network;
}

// Sets the ToS in the address, because Socket::Connect overwrites a value set by SetIpTos.
void
ConnectWithTos(Ptr<Socket> socket, Ipv4Address address, uint16_t port, uint32_t tos)
{
    InetSocketAddress peer(address, port);
    peer.SetTos(tos);
    socket->Connect(peer);
}

uint16_t
PortOf(Ptr<Socket> socket)
{
    Address local;
    socket->GetSockName(local);
    return InetSocketAddress::ConvertFrom(local).GetPort();
}

// --- flows ---------------------------------------------------------------------------------------------------------------

struct Flow
{
    int64_t start_ns = 0;
    uint32_t src = 0;
    uint32_t dst = 0;
    uint64_t bytes = 0;
    uint32_t tos = 0x10;
    Way there;
    Way back;

    uint64_t written = 0;
    uint64_t received = 0;
    bool writing = false;
    int64_t connected_ns = -1;
    int64_t received_ns = -1; // last byte
    int64_t closed_ns = -1;
    const char* status = "NO_ONGOING";
};

std::vector<Flow>
ReadFlows()
{
    std::vector<Flow> flows;
    for (const Row& row : ReadTable("flows.csv"))
    {
        Flow flow;
        flow.start_ns = Number(row, "start_ns");
        flow.src = Number(row, "src");
        flow.dst = Number(row, "dst");
        flow.bytes = Number(row, "bytes");
        flow.tos = Number(row, "tos");
        flow.there = ReadWay(row, "there");
        flow.back = ReadWay(row, "back");
        flows.push_back(flow);
    }
    return flows;
}

// Starts the flows, each on its own connection, and records their times.
class Flows
{
  public:
    Flows(const Network& network, std::vector<Flow> flows)
        : m_network(network),
          m_flows(std::move(flows))
    {
        for (uint32_t host = 0; host < g_settings.hosts; ++host)
        {
            Ptr<Socket> listener = Socket::CreateSocket(network.nodes.Get(host), TcpSocketFactory::GetTypeId());
            listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), FLOW_PORT));
            listener->Listen();
            // Accepted sockets then answer a FIN with a FIN at once. Their ToS remains 0.
            listener->ShutdownSend();
            listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                        MakeCallback(&Flows::OnAccept, this));
            m_listeners.push_back(listener);
        }
        for (uint32_t i = 0; i < m_flows.size(); ++i)
        {
            Simulator::Schedule(NanoSeconds(m_flows[i].start_ns), &Flows::Start, this, i);
        }
    }

    const std::vector<Flow>& List() const
    {
        return m_flows;
    }

    std::function<void()> on_all_closed;

  private:
    void Start(uint32_t i)
    {
        Flow& flow = m_flows[i];
        Ptr<Socket> socket = Socket::CreateSocket(m_network.nodes.Get(flow.src), TcpSocketFactory::GetTypeId());
        socket->Bind();
        const uint16_t port = PortOf(socket);
        SetWays(m_network.address[flow.src], port, flow.there, flow.back);
        m_of_port[{m_network.address[flow.src].Get(), port}] = i;
        m_of_socket[PeekPointer(socket)] = i;
        m_sockets[i] = socket;
        socket->SetConnectCallback(MakeCallback(&Flows::OnConnected, this), MakeCallback(&Flows::OnFailed, this));
        socket->SetSendCallback(MakeCallback(&Flows::OnRoom, this));
        socket->SetCloseCallbacks(MakeCallback(&Flows::OnClosed, this), MakeCallback(&Flows::OnFailed, this));
        ConnectWithTos(socket, m_network.address[flow.dst], FLOW_PORT, flow.tos);
        socket->ShutdownRecv();
    }

    Flow& Of(Ptr<Socket> socket)
    {
        return m_flows[m_of_socket.at(PeekPointer(socket))];
    }

    void OnConnected(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.connected_ns = Now() - flow.start_ns;
        flow.writing = true;
        Write(flow, socket);
    }

    void OnRoom(Ptr<Socket> socket, uint32_t)
    {
        Write(Of(socket), socket);
    }

    void Write(Flow& flow, Ptr<Socket> socket)
    {
        if (!flow.writing)
        {
            return;
        }
        while (flow.written < flow.bytes)
        {
            const uint64_t bytes = std::min(WriteBytes(), flow.bytes - flow.written);
            const int taken = socket->Send(Create<Packet>(bytes));
            flow.written += std::max(taken, 0);
            if (taken < 0 || static_cast<uint64_t>(taken) < bytes)
            {
                return; // the send buffer is full
            }
        }
        flow.writing = false;
        // The FIN goes out on the last data segment.
        socket->Close();
    }

    void OnClosed(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.closed_ns = Now() - flow.start_ns;
        flow.status = "YES";
        Forget(socket);
    }

    void OnFailed(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.closed_ns = Now() - flow.start_ns;
        flow.status = flow.connected_ns < 0 ? "NO_CONN_FAIL" : "NO_ERR_CLOSE";
        Forget(socket);
    }

    void Forget(Ptr<Socket> socket)
    {
        if (++m_closed == m_flows.size() && on_all_closed)
        {
            on_all_closed();
        }
    }

    void OnAccept(Ptr<Socket> socket, const Address& from)
    {
        const InetSocketAddress peer = InetSocketAddress::ConvertFrom(from);
        m_of_socket[PeekPointer(socket)] = m_of_port.at({peer.GetIpv4().Get(), peer.GetPort()});
        m_accepted.insert(socket);
        socket->SetRecvCallback(MakeCallback(&Flows::OnData, this));
    }

    void OnData(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
            flow.received += packet->GetSize();
        }
        if (flow.received == flow.bytes && flow.received_ns < 0)
        {
            flow.received_ns = Now() - flow.start_ns;
        }
    }

    const Network& m_network;
    std::vector<Flow> m_flows;
    std::vector<Ptr<Socket>> m_listeners;
    // Sockets are kept to the end: ns-3 has timers on them in TIME_WAIT, and a reused pointer would refer to another flow.
    std::map<uint32_t, Ptr<Socket>> m_sockets;
    std::set<Ptr<Socket>> m_accepted;
    std::map<const Socket*, uint32_t> m_of_socket;
    std::map<std::pair<uint32_t, uint16_t>, uint32_t> m_of_port;
    size_t m_closed = 0;
};

// --- the training job ----------------------------------------------------------------------------------------------------

struct Bucket
{
    std::vector<uint64_t> parts; // by step, then rank
    uint32_t lowest_layer = 0;   // send priority; the smallest is sent first
    uint64_t ready = 0;          // position in the order in which buckets became ready; 0: not ready
    bool done = false;
};

// An iteration is a backward pass, then a forward pass. Buckets are sent one at a time, in FIFO or priority order. All workers
// compute equally long and wait for the same buckets, so one state represents all of them.
class Job
{
  public:
    explicit Job(const Network& network)
        : m_network(network)
    {
        for (const Row& row : ReadTable("ring.csv"))
        {
            m_hosts.push_back(Number(row, "host"));
            m_there.push_back(ReadWay(row, "there"));
            m_back.push_back(ReadWay(row, "back"));
        }
        m_workers = m_hosts.size();
        m_steps = 2 * (m_workers - 1);
        ReadLayers();
        for (uint32_t worker = 0; worker < m_workers; ++worker)
        {
            Ptr<Socket> listener = Socket::CreateSocket(network.nodes.Get(m_hosts[worker]), TcpSocketFactory::GetTypeId());
            listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), JOB_PORT));
            listener->Listen();
            listener->SetIpTos(g_settings.job_tos);
            listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                        MakeCallback(&Job::OnAccept, this));
            m_listeners.push_back(listener);
            m_worker_on[m_hosts[worker]] = worker;
        }
        m_to_right.resize(m_workers);
        m_unwritten.assign(m_workers, 0);
        m_received.assign(m_workers, 0);
        m_partitions.assign(m_workers, 0);
        for (uint32_t worker = 0; worker < m_workers; ++worker)
        {
            Simulator::Schedule(NanoSeconds(0), &Job::Connect, this, worker);
        }
    }

    struct AllReduce
    {
        uint32_t bucket;
        int64_t start_ns;
        int64_t end_ns;
    };

    struct Iteration
    {
        int64_t backward_start_ns;
        int64_t time_ns;
    };

    const std::vector<AllReduce>& AllReduces() const
    {
        return m_all_reduces;
    }

    const std::vector<Iteration>& Iterations() const
    {
        return m_iterations;
    }

    std::function<void()> on_end;

  private:
    void ReadLayers()
    {
        for (const Row& row : ReadTable("parts.csv"))
        {
            const size_t bucket = Number(row, "bucket");
            m_buckets.resize(std::max(m_buckets.size(), bucket + 1));
            std::vector<uint64_t>& parts = m_buckets[bucket].parts;
            parts.resize(size_t(m_steps) * m_workers);
            parts[Number(row, "step") * m_workers + Number(row, "rank")] = Number(row, "bytes");
        }
        for (const Row& row : ReadTable("layers.csv"))
        {
            m_forward_ns.push_back(Number(row, "forward_ns"));
            m_backward_ns.push_back(Number(row, "backward_ns"));
            m_bucket_of.push_back(Number(row, "bucket"));
        }
        m_layers = m_waiting_layer = m_bucket_of.size();
        for (uint32_t layer = m_layers; layer-- > 0;)
        {
            if (m_bucket_of[layer] >= 0)
            {
                m_buckets[m_bucket_of[layer]].lowest_layer = layer;
            }
        }
    }

    // Connections: worker i writes to i + 1 and reads from i - 1.

    void Connect(uint32_t worker)
    {
        Ptr<Socket> socket = Socket::CreateSocket(m_network.nodes.Get(m_hosts[worker]), TcpSocketFactory::GetTypeId());
        socket->Bind();
        SetWays(m_network.address[m_hosts[worker]], PortOf(socket), m_there[worker], m_back[worker]);
        socket->SetConnectCallback(MakeCallback(&Job::OnConnected, this), MakeCallback(&Job::OnFailed, this));
        socket->SetSendCallback(MakeCallback(&Job::OnRoom, this));
        m_to_right[worker] = socket;
        m_worker_of[PeekPointer(socket)] = worker;
        const uint32_t right = m_hosts[(worker + 1) % m_workers];
        ConnectWithTos(socket, m_network.address[right], JOB_PORT, g_settings.job_tos);
    }

    void OnConnected(Ptr<Socket>)
    {
        if (++m_connected == m_workers)
        {
            StartBackward();
        }
    }

    void OnFailed(Ptr<Socket>)
    {
        NS_ABORT_MSG("a connection of the ring failed at " << Now() << " ns");
    }

    void OnAccept(Ptr<Socket> socket, const Address&)
    {
        m_worker_of[PeekPointer(socket)] = m_worker_on.at(socket->GetNode()->GetId());
        m_accepted.push_back(socket);
        socket->SetRecvCallback(MakeCallback(&Job::OnData, this));
    }

    // Compute.

    void StartBackward()
    {
        const bool is_late = g_settings.duration_ns > 0 && Now() >= int64_t(g_settings.duration_ns);
        if (is_late || (g_settings.iterations > 0 && m_iterations.size() == g_settings.iterations))
        {
            on_end();
            return;
        }
        m_iterations.push_back({Now(), -1});
        for (Bucket& bucket : m_buckets)
        {
            bucket.ready = 0;
            bucket.done = false;
        }
        m_ready = m_done = 0;
        Simulator::Schedule(NanoSeconds(m_backward_ns[m_layers - 1]), &Job::OnBackward, this, m_layers - 1);
    }

    void OnBackward(uint32_t layer)
    {
        if (m_bucket_of[layer] >= 0 && m_buckets[m_bucket_of[layer]].lowest_layer == layer)
        {
            m_buckets[m_bucket_of[layer]].ready = ++m_ready;
            StartNext();
        }
        if (layer == 0)
        {
            TryForward(0);
            return;
        }
        Simulator::Schedule(NanoSeconds(m_backward_ns[layer - 1]), &Job::OnBackward, this, layer - 1);
    }

    bool HasArrived(uint32_t layer) const
    {
        if (g_settings.barrier)
        {
            return m_done == m_buckets.size();
        }
        return m_bucket_of[layer] < 0 || m_buckets[m_bucket_of[layer]].done;
    }

    void TryForward(uint32_t layer)
    {
        m_waiting_layer = layer;
        if (HasArrived(layer))
        {
            m_waiting_layer = m_layers;
            Simulator::Schedule(NanoSeconds(m_forward_ns[layer]), &Job::OnForward, this, layer);
        }
    }

    void OnForward(uint32_t layer)
    {
        if (layer + 1 < m_layers)
        {
            TryForward(layer + 1);
            return;
        }
        m_iterations.back().time_ns = Now() - m_iterations.back().backward_start_ns;
        StartBackward();
    }

    // Communication: one bucket at a time, 2 (N - 1) partitions each.

    void StartNext()
    {
        if (m_running)
        {
            return;
        }
        const auto place = [](const Bucket& bucket) { return g_settings.by_priority ? bucket.lowest_layer : bucket.ready; };
        for (Bucket& bucket : m_buckets)
        {
            if (bucket.ready > 0 && !bucket.done && (!m_running || place(bucket) < place(*m_running)))
            {
                m_running = &bucket;
            }
        }
        if (!m_running)
        {
            return;
        }
        m_start_ns = Now();
        m_finished = 0;
        for (uint32_t worker = 0; worker < m_workers; ++worker)
        {
            m_received[worker] = 0;
            m_partitions[worker] = 0;
            SendPartition(worker);
        }
    }

    // Returns the bytes that a worker sends in a step of the running bucket.
    uint64_t PartitionBytes(uint32_t step, uint32_t worker) const
    {
        return m_running->parts[size_t(step) * m_workers + worker];
    }

    void SendPartition(uint32_t worker)
    {
        m_unwritten[worker] += PartitionBytes(m_partitions[worker], worker);
        Write(worker);
    }

    void OnRoom(Ptr<Socket> socket, uint32_t)
    {
        Write(m_worker_of.at(PeekPointer(socket)));
    }

    void Write(uint32_t worker)
    {
        while (m_unwritten[worker] > 0)
        {
            const uint64_t bytes = std::min(WriteBytes(), m_unwritten[worker]);
            m_unwritten[worker] -= bytes;
            const int taken = m_to_right[worker]->Send(Create<Packet>(bytes));
            if (taken < 0 || static_cast<uint64_t>(taken) < bytes)
            {
                m_unwritten[worker] += bytes - std::max(taken, 0);
                return;
            }
        }
    }

    void OnData(Ptr<Socket> socket)
    {
        const uint32_t worker = m_worker_of.at(PeekPointer(socket));
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
            m_received[worker] += packet->GetSize();
        }
        const uint32_t left = (worker + m_workers - 1) % m_workers;
        while (m_running && m_partitions[worker] < m_steps &&
               m_received[worker] >= PartitionBytes(m_partitions[worker], left))
        {
            m_received[worker] -= PartitionBytes(m_partitions[worker], left);
            if (++m_partitions[worker] < m_steps)
            {
                SendPartition(worker);
            }
            else if (++m_finished == m_workers)
            {
                Finish();
            }
        }
    }

    void Finish()
    {
        m_all_reduces.push_back({uint32_t(m_running - m_buckets.data()), m_start_ns, Now()});
        m_running->done = true;
        ++m_done;
        m_running = nullptr;
        StartNext();
        if (m_waiting_layer < m_layers)
        {
            TryForward(m_waiting_layer);
        }
    }

    const Network& m_network;
    std::vector<int64_t> m_forward_ns;
    std::vector<int64_t> m_backward_ns;
    std::vector<Bucket> m_buckets;
    std::vector<int64_t> m_bucket_of;
    uint32_t m_layers = 0;
    uint32_t m_waiting_layer = 0;
    uint64_t m_ready = 0;
    size_t m_done = 0;

    std::vector<uint32_t> m_hosts;
    std::vector<Way> m_there;
    std::vector<Way> m_back;
    std::map<uint32_t, uint32_t> m_worker_on;
    uint32_t m_workers = 0;
    uint32_t m_steps = 0;

    std::vector<Ptr<Socket>> m_listeners;
    std::vector<Ptr<Socket>> m_accepted;
    std::vector<Ptr<Socket>> m_to_right;
    std::map<const Socket*, uint32_t> m_worker_of;
    uint32_t m_connected = 0;

    Bucket* m_running = nullptr;
    int64_t m_start_ns = 0;
    uint32_t m_finished = 0;
    std::vector<uint64_t> m_unwritten;
    std::vector<uint64_t> m_received;
    std::vector<uint32_t> m_partitions;

    std::vector<AllReduce> m_all_reduces;
    std::vector<Iteration> m_iterations;
};

// --- results -------------------------------------------------------------------------------------------------------------

double
CpuSeconds()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec + 1e-6 * (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

long
PeakRssKb()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

void
WriteFlows(const std::vector<Flow>& flows)
{
    std::ofstream file(g_settings.out + "/fct.csv");
    file << "fct_close_ns,fct_rx_ns,conn_ns,status\n";
    for (const Flow& f : flows)
    {
        file << f.closed_ns << ',' << f.received_ns << ',' << f.connected_ns << ',' << f.status << '\n';
    }
}

void
WriteJob(const Job& job)
{
    std::ofstream iterations(g_settings.out + "/iters.csv");
    iterations << "bp_start_ns,iter_time_ns\n";
    for (const Job::Iteration& it : job.Iterations())
    {
        iterations << it.backward_start_ns << ',' << it.time_ns << '\n';
    }
    std::ofstream all_reduces(g_settings.out + "/allreduce.csv");
    all_reduces << "bucket,start_ns,end_ns\n";
    for (const Job::AllReduce& a : job.AllReduces())
    {
        all_reduces << a.bucket << ',' << a.start_ns << ',' << a.end_ns << '\n';
    }
}

} // namespace

int
main(int argc, char* argv[])
{
    Settings& s = g_settings;
    CommandLine cmd(__FILE__);
    cmd.AddValue("in", "folder of the tables that are read", s.in);
    cmd.AddValue("out", "folder of the results", s.out);
    cmd.AddValue("hosts", "nodes below are hosts", s.hosts);
    cmd.AddValue("duration_ns", "after this no iteration begins; 0: no limit", s.duration_ns);
    cmd.AddValue("stop_ns", "simulated time at which all ends", s.stop_ns);
    cmd.AddValue("report_ns", "print progress as a share of this time; 0: print none", s.report_ns);
    cmd.AddValue("tcp", "congestion control: TcpNewReno, TcpCubic or TcpDctcp", s.tcp);
    cmd.AddValue("ecn", "connections negotiate ECN", s.ecn);
    cmd.AddValue("dctcp_gain", "weight of DCTCP's newest window", s.dctcp_gain);
    cmd.AddValue("segment_bytes", "payload of a full segment", s.segment_bytes);
    cmd.AddValue("initial_window", "initial window in segments", s.initial_window);
    cmd.AddValue("window_bytes", "send and receive buffers", s.window_bytes);
    cmd.AddValue("min_rto_ns", "least retransmission timeout", s.min_rto_ns);
    cmd.AddValue("initial_rtt_ns", "estimate of a round trip before the first sample", s.initial_rtt_ns);
    cmd.AddValue("connect_timeout_ns", "timeout of the first SYN", s.connect_timeout_ns);
    cmd.AddValue("delayed_ack_ns", "longest delay of an acknowledgement", s.delayed_ack_ns);
    cmd.AddValue("queue", "pfifo_fast, fifo, or ecn: one band that marks from mark_packets on", s.queue);
    cmd.AddValue("buffer_packets", "size of every qdisc", s.buffer_packets);
    cmd.AddValue("mark_packets", "threshold of the queue ecn", s.mark_packets);
    cmd.AddValue("job_tos", "ToS of what the job sends, and of the ACKs", s.job_tos);
    cmd.AddValue("barrier", "the forward pass waits for all buckets", s.barrier);
    cmd.AddValue("by_priority", "the bucket of the lowest layer goes first; else the first that is ready", s.by_priority);
    cmd.AddValue("iterations", "end after so many; 0: no such end", s.iterations);
    cmd.AddValue("trace", "also write trace.csv: every packet as its transmission starts", s.trace);
    cmd.AddValue("trace_from_ns", "only packets whose transmission starts at this time or later", s.trace_from_ns);
    cmd.AddValue("trace_to_ns", "only packets whose transmission starts before this time", s.trace_to_ns);
    cmd.Parse(argc, argv);

    const auto wall_start = std::chrono::steady_clock::now();
    Time::SetResolution(Time::NS);
    if (s.trace)
    {
        g_trace.open(s.out + "/trace.csv");
        g_trace << "start_ns,link,bytes,flags,src_port,dst_port,seq,ack,payload_bytes,tos\n";
    }
    SetTcp();
    const Network network = BuildNetwork();
    // The simulation stops 10 ms after the end of all flows and the job, so that the last FINs and ACKs are counted.
    int under_way = 0;
    const auto on_end = [&under_way] {
        if (--under_way == 0)
        {
            Simulator::Stop(MilliSeconds(10));
        }
    };
    // As in gradtide, the job opens its connections before flows that start at the same time.
    std::unique_ptr<Job> job;
    if (std::ifstream(s.in + "/ring.csv"))
    {
        ++under_way;
        job = std::make_unique<Job>(network);
        job->on_end = on_end;
    }
    Flows flows(network, ReadFlows());
    under_way += flows.List().empty() ? 0 : 1;
    flows.on_all_closed = on_end;
    const double setup_s = CpuSeconds();
    Simulator::Stop(NanoSeconds(s.stop_ns));
    Simulator::Run();
    const double cpu_s = CpuSeconds() - setup_s;
    const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
    const double sim_s = Simulator::Now().GetSeconds();
    const uint64_t events = Simulator::GetEventCount();

    WriteFlows(flows.List());
    if (job)
    {
        WriteJob(*job);
    }
    std::ofstream summary(s.out + "/summary.json");
    summary << "{\"engine\":\"ns-3.37\",\"sim_s\":" << sim_s << ",\"wall_s\":" << wall_s << ",\"cpu_s\":" << cpu_s
            << ",\"setup_s\":" << setup_s << ",\"events\":" << events << ",\"events_per_cpu_s\":" << events / cpu_s
            << ",\"packet_hops\":" << g_packet_hops << ",\"packet_hops_per_cpu_s\":" << g_packet_hops / cpu_s
            << ",\"hop_bytes\":" << g_hop_bytes << ",\"qdisc_drops\":" << g_drops
            << (g_settings.mark_packets ? ",\"ce_marks\":" + std::to_string(g_marks) : "")
            << ",\"peak_rss_kb\":" << PeakRssKb() << ",\"flows\":" << flows.List().size()
            << ",\"allreduces\":" << (job ? job->AllReduces().size() : 0) << "}\n";
    // Simulator::Destroy() is not called, because the end of the process frees the memory faster.
}
