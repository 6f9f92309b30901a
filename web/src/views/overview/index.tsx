/** Overview: what needs attention, the figures of the last minutes, tasks, log, events. */
import { openDemo } from "../../shell/demo";
import { useCluster } from "../../state/cluster";
import { Button } from "../../ui/controls";
import { Empty, Fault, Loading } from "../../ui/empty";
import { Page, Scroll, Section } from "../../ui/page";
import { Happened } from "./happened";
import { AttentionList } from "./attention";
import { Figures } from "./figures";
import { Fleet } from "./fleet";
import { Said } from "./said";
import { TaskList } from "./tasks";

export default function Overview() {
  const { cluster, cursor, fault, loading } = useCluster();
  if (loading || !cluster) {
    return (
      <Page title="Overview">
        <Scroll label="Overview">{fault ? <Fault error={fault} /> : <Loading />}</Scroll>
      </Page>
    );
  }
  const fresh = cluster.tasks.size === 0 && cluster.workers.size === 0;
  return (
    <Page title="Overview">
      <Scroll label="Overview">
        <AttentionList items={cluster.attention} />
        <Figures metrics={cluster.metrics} />
        <div className="mt-8 grid grid-cols-[minmax(0,1fr)_21rem] gap-x-10 gap-y-8 max-xl:grid-cols-1">
          <Section title="Tasks" aside={cluster.totals && `${cluster.totals.tasks} in total`}>
            {fresh ? (
              <>
                <Empty
                  title="No task has run yet"
                  text="Start a training script on a few workers:"
                  command="strata run examples/counter.py --workers 3"
                />
                {cursor === null && <Button onClick={openDemo}>Play the demo</Button>}
              </>
            ) : (
              <TaskList tasks={cluster.tasks} />
            )}
            {!fresh && <Said lines={cluster.logs} />}
          </Section>
          <div className="flex flex-col gap-8">
            <Fleet totals={cluster.totals} />
            <Happened items={cluster.happened} />
          </div>
        </div>
      </Scroll>
    </Page>
  );
}
