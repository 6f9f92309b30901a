/** The words of Strata that the page uses and that are not common in the field. */

export const GLOSSARY = {
  barrier: "A named point in a training script where the workers of a task wait until all of them have arrived.",
  "committed steps": "Training steps that every worker of the generation has applied. Only a rollback to an older checkpoint undoes them.",
  fact: "An entry in the coordinator's log. The state of the cluster is computed from the facts.",
  generation: "The workers of a task and their ranks between two changes. Each time a worker joins, leaves or is lost, the next generation starts.",
  incarnation: "A number that each start of a worker or of the coordinator gets. It is never used twice, so that messages of an earlier process can be rejected.",
  lane: "One row of the timeline: what a worker did, as coloured spans, with marks for events.",
  "loss policy": "What a task does when a worker is lost: replace the worker, continue with fewer workers, or stop.",
  shard: "A range of samples of a dataset. It is leased to one worker at a time, and consumed once in each epoch.",
  spare: "An extra worker of a task that waits and takes the place of a lost worker.",
  "state layout": "Whether every worker holds the whole model state (replicated) or a part of it (sharded).",
  "step lag": "The number of steps that a worker is behind the furthest worker of its task.",
  "time cursor": "The moment that all views show. It is set on the strip at the top; without it the views are live.",
} as const;

export type Word = keyof typeof GLOSSARY;
