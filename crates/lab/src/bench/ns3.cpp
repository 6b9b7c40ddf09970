// A scenario of the bench `sim` in ns-3: TCP NewReno over a dumb-bell with one
// string or two. Its words are those of `Plan::words` in plans.rs, and the one
// line that it prints is what ns3.rs reads.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include <algorithm>
#include <ctime>
#include <iostream>
#include <sys/resource.h>
#include <unordered_map>
#include <vector>

using namespace ns3;

// Routes by address: ns-3's own tables are searched line by line.
class Table : public Ipv4RoutingProtocol
{
  public:
    std::unordered_map<uint32_t, uint32_t> interfaces;
    uint32_t otherwise = 1;

    Ptr<Ipv4Route> Find(Ipv4Address to)
    {
        auto it = interfaces.find(to.Get());
        uint32_t interface = it == interfaces.end() ? otherwise : it->second;
        Ptr<Ipv4Route> route = Create<Ipv4Route>();
        route->SetDestination(to);
        route->SetSource(m_ipv4->GetAddress(interface, 0).GetLocal());
        route->SetGateway(Ipv4Address::GetZero());
        route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        return route;
    }

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header& header, Ptr<NetDevice>,
                               Socket::SocketErrno& error) override
    {
        error = Socket::ERROR_NOTERROR;
        return Find(header.GetDestination());
    }

    bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice> device,
                    const UnicastForwardCallback& forward, const MulticastForwardCallback&,
                    const LocalDeliverCallback& deliver, const ErrorCallback&) override
    {
        uint32_t interface = m_ipv4->GetInterfaceForDevice(device);
        if (m_ipv4->IsDestinationAddress(header.GetDestination(), interface))
        {
            deliver(packet, header, interface);
        }
        else
        {
            forward(Find(header.GetDestination()), packet, header);
        }
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> ipv4) override { m_ipv4 = ipv4; }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Ptr<Ipv4> m_ipv4;
};

class TableHelper : public Ipv4RoutingHelper
{
  public:
    TableHelper* Copy() const override { return new TableHelper; }
    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override { return CreateObject<Table>(); }
};

static Ptr<Table> TableOf(Ptr<Node> node)
{
    return DynamicCast<Table>(node->GetObject<Ipv4>()->GetRoutingProtocol());
}

// A link and the interfaces at its ends.
struct Wire
{
    NetDeviceContainer devices;
    uint32_t left, right;
    Ipv4Address leftAddress, rightAddress;
};

static Wire Connect(Ptr<Node> left, Ptr<Node> right, double delayMs, uint32_t packets)
{
    static uint32_t addresses = 0x0a000001;
    PointToPointHelper helper;
    // Or else a layer above the full queue drops packets, where nobody counts them.
    helper.DisableFlowControl();
    helper.SetDeviceAttribute("DataRate", StringValue("100Mbps"));
    helper.SetChannelAttribute("Delay", TimeValue(MilliSeconds(delayMs)));
    helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize",
                    StringValue(std::to_string(packets) + "p"));
    Wire wire;
    wire.devices = helper.Install(left, right);
    auto add = [&](Ptr<Node> node, uint32_t end, Ipv4Address& address) {
        // By hand: the address helper would add a queue discipline.
        Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
        uint32_t interface = ipv4->AddInterface(wire.devices.Get(end));
        address = Ipv4Address(addresses++);
        ipv4->AddAddress(interface, Ipv4InterfaceAddress(address, Ipv4Mask(0xffffffff)));
        ipv4->SetUp(interface);
        return interface;
    };
    wire.left = add(left, 0, wire.leftAddress);
    wire.right = add(right, 1, wire.rightAddress);
    return wire;
}

// What is counted.
static struct
{
    Time last;
    uint64_t bytes = 0, passed = 0, dropped = 0, timeouts = 0;
    std::vector<double> times;
} g_seen;

// A transfer, which is over when all of its bytes have arrived.
struct Transfer
{
    double startS;
    uint64_t missing;

    void Received(Ptr<const Packet> packet, const Address&)
    {
        g_seen.last = Simulator::Now();
        g_seen.bytes += packet->GetSize();
        missing -= packet->GetSize();
        if (missing == 0)
        {
            g_seen.times.push_back(g_seen.last.GetSeconds() - startS);
        }
    }
};

// Only data is counted: packets with a payload are larger than this.
static const uint32_t DATA_BYTES_MIN = 1000;

static void Passed(Ptr<const Packet> packet)
{
    g_seen.passed += packet->GetSize() > DATA_BYTES_MIN;
}

static void Dropped(Ptr<const Packet>)
{
    g_seen.dropped++;
}

// TcpNewReno, and its timeouts are counted.
class Counted : public TcpNewReno
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("Counted").SetParent<TcpNewReno>().AddConstructor<Counted>();
        return id;
    }

    void CwndEvent(Ptr<TcpSocketState> state, const TcpSocketState::TcpCAEvent_t event) override
    {
        g_seen.timeouts += event == TcpSocketState::CA_EVENT_LOSS;
        TcpNewReno::CwndEvent(state, event);
    }

    Ptr<TcpCongestionOps> Fork() override { return CopyObject<Counted>(this); }
};

NS_OBJECT_ENSURE_REGISTERED(Counted);

struct Plan
{
    uint32_t flows, strings, segments, window, buffer;
    double delaysMs[4], everyMs, endS, failsS, isBackS;
    bool moves;

    // Reads what `Plan::words` wrote.
    explicit Plan(char** words)
    {
        auto whole = [&] { return uint32_t(std::stoul(*words++)); };
        auto real = [&] { return std::stod(*words++); };
        flows = whole(), strings = whole(), segments = whole(), window = whole(), buffer = whole();
        for (double& delay : delaysMs)
        {
            delay = real();
        }
        everyMs = real(), endS = real(), failsS = real(), isBackS = real();
        moves = whole() != 0;
    }

    static constexpr int WORDS = 14;
};

static void Configure(const Plan& plan)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(Counted::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1460));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(8 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(plan.window * 1460));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(3)));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
}

// Sets what packets that arrive at the first string's interfaces suffer.
static void Fail(const std::vector<Wire>& string, bool fails)
{
    for (const Wire& wire : string)
    {
        for (uint32_t end = 0; end < 2; end++)
        {
            auto model = CreateObject<RateErrorModel>();
            model->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
            model->SetRate(fails ? 1 : 0);
            wire.devices.Get(end)->SetAttribute("ReceiveErrorModel", PointerValue(model));
        }
    }
}

static void Print()
{
    std::vector<double>& times = g_seen.times;
    std::sort(times.begin(), times.end());
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    std::cout.precision(12);
    std::cout << double(std::clock()) / CLOCKS_PER_SEC << " " << used.ru_maxrss * 1024 / 1e6 << " "
              << Simulator::GetEventCount() << " " << g_seen.last.GetSeconds() << " "
              << g_seen.bytes << " " << g_seen.passed << " " << g_seen.dropped << " "
              << g_seen.timeouts << " " << times.size();
    for (size_t at : {times.size() / 2, times.size() - 1})
    {
        std::cout << " " << (times.empty() ? 0 : times[at]);
    }
    std::cout << std::endl;
}

int main(int argc, char** argv)
{
    if (argc != Plan::WORDS + 1)
    {
        std::cerr << Plan::WORDS << " words are needed" << std::endl;
        return 2;
    }
    const Plan plan(argv + 1);
    const uint32_t wide = 100000;
    Configure(plan);

    NodeContainer nodes(2 + plan.strings + 2 * plan.flows);
    InternetStackHelper internet;
    internet.SetIpv6StackInstall(false);
    internet.SetRoutingHelper(TableHelper());
    internet.Install(nodes);
    Ptr<Node> in = nodes.Get(0), out = nodes.Get(1);
    std::vector<Wire> before, behind;
    for (uint32_t string = 0; string < plan.strings; string++)
    {
        Ptr<Node> node = nodes.Get(2 + string);
        before.push_back(Connect(in, node, plan.delaysMs[1], plan.buffer));
        behind.push_back(Connect(node, out, plan.delaysMs[2], wide));
    }
    for (const Wire& wire : before)
    {
        wire.devices.Get(1)->TraceConnectWithoutContext("PhyRxEnd", MakeCallback(&Passed));
        PointerValue queue;
        wire.devices.Get(0)->GetAttribute("TxQueue", queue);
        queue.Get<Queue<Packet>>()->TraceConnectWithoutContext("Drop", MakeCallback(&Dropped));
    }
    std::vector<std::pair<Ipv4Address, Ipv4Address>> moved;
    std::vector<Transfer> transfers(plan.flows);
    for (uint32_t flow = 0; flow < plan.flows; flow++)
    {
        uint32_t string = flow % plan.strings;
        Ptr<Node> source = nodes.Get(2 + plan.strings + 2 * flow);
        Ptr<Node> sink = nodes.Get(3 + plan.strings + 2 * flow);
        Wire access = Connect(source, in, plan.delaysMs[0], wide);
        Wire egress = Connect(out, sink, plan.delaysMs[3], wide);
        Ipv4Address from = access.leftAddress, to = egress.rightAddress;
        TableOf(in)->interfaces[from.Get()] = access.right;
        TableOf(in)->interfaces[to.Get()] = before[string].left;
        TableOf(out)->interfaces[to.Get()] = egress.left;
        TableOf(out)->interfaces[from.Get()] = behind[string].right;
        for (uint32_t each = 0; each < plan.strings; each++)
        {
            Ptr<Table> table = TableOf(nodes.Get(2 + each));
            table->interfaces[from.Get()] = before[each].right;
            table->interfaces[to.Get()] = behind[each].left;
        }
        if (string == 0)
        {
            moved.emplace_back(from, to);
        }
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(to, 9));
        bulk.SetAttribute("MaxBytes", UintegerValue(uint64_t(plan.segments) * 1460));
        bulk.SetAttribute("SendSize", UintegerValue(1460));
        double startMs = plan.everyMs * (flow / plan.strings);
        bulk.Install(source).Start(MicroSeconds(startMs * 1000));
        transfers[flow] = {startMs / 1000, uint64_t(plan.segments) * 1460};
        PacketSinkHelper receive("ns3::TcpSocketFactory",
                                 InetSocketAddress(Ipv4Address::GetAny(), 9));
        receive.Install(sink).Get(0)->TraceConnectWithoutContext(
            "Rx", MakeCallback(&Transfer::Received, &transfers[flow]));
    }
    if (plan.isBackS > 0)
    {
        Simulator::Schedule(Seconds(plan.failsS), [&] { Fail({before[0], behind[0]}, true); });
        Simulator::Schedule(Seconds(plan.isBackS), [&] {
            if (!plan.moves)
            {
                return Fail({before[0], behind[0]}, false);
            }
            for (auto& [from, to] : moved)
            {
                TableOf(in)->interfaces[to.Get()] = before[1].left;
                TableOf(out)->interfaces[from.Get()] = behind[1].right;
            }
        });
    }
    Simulator::Stop(Seconds(plan.endS));
    Simulator::Run();
    Print();
    Simulator::Destroy();
}
