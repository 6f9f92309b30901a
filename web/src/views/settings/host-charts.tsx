/** Charts of the recorded health of a host and its GPUs in the last hour. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { HostHistory } from "../../api/timeline";
import type { Host } from "../../api/types";
import { bytes, figure, moment, UNRECORDED } from "../../lib/format";
import { useCursor, useTimeline } from "../../state/cluster";
import { Chart, type Line } from "../../ui/chart";
import { ErrorMessage } from "../../ui/placeholders";

type Values = (number | null)[];

const COLOURS = ["accent", "active", "saving", "waiting", "dim", "failed", "text", "faint"];
const MB = 1e6;

/** Title, names of the figures, divisor, and smallest upper end of the axis. */
type Shown = [title: string, names: string[], divisor: number, least: number];

const HOST: Shown[] = [
  ["Load", ["load_1m"], 1, 1],
  ["Pressure, %: CPU, memory, disk", ["cpu_pressure_percent", "memory_pressure_percent", "io_pressure_percent"], 1, 10],
  ["Memory available, MB", ["memory_available_bytes"], MB, 1],
  ["Disk latency, ms", ["disk_latency_ms"], 1, 1],
  ["Disk free, MB", ["disk_free_bytes"], MB, 1],
  ["OOM kills: host, cgroup", ["oom_kills", "cgroup_oom_kills"], 1, 1],
  ["Network errors, drops", ["nic_errors", "nic_drops"], 1, 1],
];

const GPU: Shown[] = [
  ["GPU utilization, %", ["utilization_percent"], 1, 100],
  ["GPU memory, MB", ["memory_used_bytes"], MB, 1],
  ["GPU temperature, °C", ["temperature_celsius"], 1, 50],
  ["GPU memory temperature, °C", ["memory_temperature_celsius"], 1, 50],
  ["GPU power, W", ["power_watts"], 1, 100],
  ["GPU clock, MHz", ["sm_clock_mhz"], 1, 100],
  ["PCIe received and sent, MB/s", ["pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"], MB, 1],
  ["NVLink received and sent, MB/s", ["nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"], MB, 1],
  ["ECC errors: corrected, uncorrected", ["ecc_corrected", "ecc_uncorrected"], 1, 1],
  ["Xid errors", ["xid_errors"], 1, 1],
  ["PCIe replays, NVLink errors", ["pcie_replays", "nvlink_errors"], 1, 1],
];

const scaled = (values: Values, divisor: number) => values.map((value) => (value === null ? null : value / divisor));

const nth = (number: number) => COLOURS[number % COLOURS.length]!;

/** The charts for which something was recorded: one line per figure, and per GPU. */
export function chartsOf(history: HostHistory): { title: string; lines: Line[]; least: number }[] {
  const ofHost = HOST.map(([title, names, divisor, least]) => {
    const found = names.flatMap((name) => (history.figures[name] ? [history.figures[name]] : []));
    return { title, least, lines: found.map((values, number) => ({ values: scaled(values, divisor), colour: nth(number) })) };
  });
  const ofGpus = GPU.map(([title, names, divisor, least]) => {
    const found = history.gpus.flatMap((gpu) => names.flatMap((name) => (gpu.figures[name] ? [gpu.figures[name]] : [])));
    return { title, least, lines: found.map((values, number) => ({ values: scaled(values, divisor), colour: nth(number) })) };
  });
  return [...ofHost, ...ofGpus].filter(({ lines }) => lines.length > 0);
}

/** The newest value of each line; of many lines the lowest and the highest. */
export function newest(lines: Line[]): string {
  const values = lines.flatMap((line) => line.values[line.values.length - 1] ?? []).map((value) => Math.round(value * 10) / 10);
  if (values.length === 0) return UNRECORDED;
  if (values.length <= 3) return values.map(figure).join(" · ");
  return `${figure(Math.min(...values))} to ${figure(Math.max(...values))}`;
}

/** GPUs by the reasons of their reduced clocks: `sw_power_cap: 0, 1, 2`. */
function throttled(host: Host): string {
  const byReason = new Map<string, number[]>();
  for (const gpu of host.health?.gpus ?? []) {
    const reasons = gpu.throttle_reasons === null ? UNRECORDED : gpu.throttle_reasons.replaceAll(",", ", ") || "not reduced";
    byReason.set(reasons, [...(byReason.get(reasons) ?? []), gpu.index]);
  }
  return [...byReason].map(([reasons, indexes]) => `${reasons} (GPU ${indexes.join(", ")})`).join("; ");
}

export function HostCharts({ host }: { host: Host }) {
  const timeline = useTimeline();
  const cursor = useCursor();
  const { data, error } = useQuery({
    // Live, it is read again when the host was measured again.
    queryKey: ["host-health", host.id, cursor ?? host.measured_at, cursor === null],
    queryFn: ({ signal }) => timeline.hostHealth(host.id, cursor, signal),
    staleTime: Infinity,
    placeholderData: keepPreviousData,
    retry: false,
  });
  if (error) return <ErrorMessage error={error} />;
  if (!data) return null;
  const charts = chartsOf(data);
  return (
    <section aria-label={`Health of ${host.id} in the last hour`} className="mt-6">
      <h3 className="mb-4 text-dim">
        {host.id}{host.measured_at !== null && <>, measured {moment(host.measured_at)} by {host.reporter}</>}
        {host.health?.disk_total_bytes != null && <>, disk {bytes(host.health.disk_free_bytes)} of {bytes(host.health.disk_total_bytes)} free</>}
        {(host.health?.gpus.length ?? 0) > 0 && <span className="block text-s">{[...new Set(host.health?.gpus.map((gpu) => gpu.name))].join(", ")}; clocks: {throttled(host)}</span>}
      </h3>
      {charts.length === 0 && <p className="text-faint">The health of this host was not recorded.</p>}
      <div className="grid grid-cols-4 gap-8 max-lg:grid-cols-2 max-sm:grid-cols-1">
        {charts.map(({ title, lines, least }) => (
          <div key={title} className="min-w-0">
            <h4 className="flex justify-between text-s text-dim">{title} <span className="text-text">{newest(lines)}</span></h4>
            <Chart label={`${title}, newest ${newest(lines)}`} at={data.at} lines={lines} least={least} height={96} />
          </div>
        ))}
      </div>
    </section>
  );
}
