/** Overview: problems, the loss of the newest task, metrics, tasks, log and latest events. */
import { openDemo } from "../../shell/demo";
import { useCluster } from "../../state/cluster";
import { Button } from "../../ui/controls";
import { Empty, ErrorMessage, Loading } from "../../ui/placeholders";
import { Page, Scroll, Section } from "../../ui/page";
import { AttentionList } from "./attention";
import { Figures } from "./figures";
import { LatestEvents } from "./latest-events";
import { LatestLog } from "./latest-log";
import { Learning } from "./learning";
import { TaskList } from "./task-list";
import { WorkerStates } from "./worker-states";

export default function Overview() {
  const { cluster, cursor, error, loading } = useCluster();
  if (loading || !cluster) {
    return (
      <Page title="Overview">
        <Scroll label="Overview">{error ? <ErrorMessage error={error} /> : <Loading />}</Scroll>
      </Page>
    );
  }
  const unused = cluster.tasks.size === 0 && cluster.workers.size === 0;
  return (
    <Page title="Overview">
      <Scroll label="Overview">
        <AttentionList items={cluster.attention} />
        <Learning tasks={cluster.tasks} />
        <Figures metrics={cluster.metrics} />
        <div className="mt-8 grid grid-cols-[minmax(0,1fr)_21rem] gap-x-10 gap-y-8 max-xl:grid-cols-1">
          <Section title="Tasks" aside={cluster.totals && `${cluster.totals.tasks} in total`}>
            {unused ? (
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
            {!unused && <LatestLog lines={cluster.logs} />}
          </Section>
          <div className="flex flex-col gap-8">
            <WorkerStates totals={cluster.totals} />
            <LatestEvents items={cluster.happened} />
          </div>
        </div>
      </Scroll>
    </Page>
  );
}
